-- What is wrong with the expiry of a job that is enqueued at this time, for a message; null: nothing.
-- One that expires before it may run would never run: the one who enqueues it hears of it now, and not of a cancelled job later.
create or replace function faultline.expiry_problem(
  expires_seconds numeric, expires_at text, delay_seconds numeric, run_at text, at timestamptz
) returns text
language plpgsql immutable
as $$
begin
  return case
    when expires_seconds is not null and expires_at is not null then 'it has both expires_seconds and expires_at'
    when expires_seconds not between 0.001 and 315360000 then 'its expires_seconds is outside 0.001 to 315360000'
    when expires_at !~ '([Zz]|[+-][0-9]{2}(:?[0-9]{2})?)$' then 'its expires_at is not a time with a time zone'
    when expires_at::timestamptz not between '1970-01-01Z' and '9999-01-01Z'
      then 'its expires_at is outside the years 1970 to 9998'
    when expires_at::timestamptz <= at then 'its expires_at has passed already'
    when coalesce(expires_at::timestamptz, at + make_interval(secs => expires_seconds::float8))
      <= coalesce(run_at::timestamptz, at + make_interval(secs => delay_seconds::float8))
      then 'it expires before it may run'
  end;
end
$$;
