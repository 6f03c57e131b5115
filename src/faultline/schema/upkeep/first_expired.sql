-- The earliest expiry of an expired lease that is not reaped yet, at or after `lower_bound`; or now, if there is none.
-- Pass the result to the next `reap` and to the next call of this function: it lets them skip dead rows of finished
-- jobs, which vacuum cannot remove while a session holds an old snapshot.
--
-- Can this bound hide an expired lease? A lease that is being renewed, ended or reaped is seen with its old expiry,
-- which is the earlier one; a lease that `reap` skips, because of a lock or `max_jobs`, is seen too. A new lease
-- expires after now, unless its claim took longer to commit than the lease lasts, the server's clock was set back, or a
-- backup was restored. So call this without a bound from time to time.
create or replace function faultline.first_expired(lower_bound timestamptz default '-infinity') returns timestamptz
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set jit = off
set max_parallel_workers_per_gather = 0
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
as $$
declare
  -- Read before the query: the next call sees a lease that expires meanwhile.
  at constant timestamptz := faultline.clock();
  earliest timestamptz;
begin
  select j.lease_expires_at into earliest
  from faultline.open_jobs j
  where j.state = 'running'
    and j.lease_expires_at >= first_expired.lower_bound
    and j.lease_expires_at <= at
  order by j.lease_expires_at
  limit 1;
  return coalesce(earliest, at);
end
$$;
