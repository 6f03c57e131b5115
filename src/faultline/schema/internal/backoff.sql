-- The default wait after a failed attempt, in seconds: it doubles each time, up to an hour.
-- core/backoff.py has the same for workers, which add jitter.
create or replace function faultline.backoff(attempt integer) returns double precision
language sql immutable parallel safe
return least(3600, 2 ^ least(attempt, 12));
