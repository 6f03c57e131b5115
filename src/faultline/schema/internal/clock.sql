-- What time it is right now. To be asked after a lock was waited for: `now()` would still tell when the wait began,
-- and a lease that ran out meanwhile would be believed.
create or replace function faultline.clock() returns timestamptz
language sql volatile parallel safe
return clock_timestamp();
