-- The current time. Use it after waiting for a lock: `now()` would still be the time when the wait began, and a lease that
-- expired meanwhile would be trusted.
create or replace function faultline.clock() returns timestamptz
language sql volatile parallel safe
return clock_timestamp();
