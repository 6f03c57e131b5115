-- The tokens of a bucket at a moment. A bucket that was never used is full. One that was filled in the future, by a clock
-- that was ahead, has what it had: no token is made of it, and none is lost.
create or replace function faultline.refilled(
  tokens double precision, refilled_at timestamptz, rate double precision, burst double precision, at timestamptz
) returns double precision
language sql immutable parallel safe
return least(burst, coalesce(tokens + rate * greatest(0, extract(epoch from at - refilled_at)::double precision), burst));
