-- The default delay after a failed attempt, in seconds: it doubles each time, up to an hour.
-- Workers use the same formula, with jitter: core/backoff.py.
create or replace function faultline.backoff(attempt integer) returns double precision
language sql immutable parallel safe
return least(3600, 2 ^ least(attempt, 12));
