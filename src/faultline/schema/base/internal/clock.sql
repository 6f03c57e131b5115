-- The current time. Use it after waiting for a lock: `now()` is the time when the wait began, so that a lease which
-- expired meanwhile would look valid.
create or replace function faultline.clock() returns timestamptz
language sql volatile parallel safe
return clock_timestamp();
