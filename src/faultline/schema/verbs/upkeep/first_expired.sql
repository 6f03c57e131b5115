-- The earliest expiry of a lease that was not reaped yet, at or after `lower_bound`; or now, if there is none.
-- The answer is the bound for the next `reap` and for the next call of this function, so that neither wades
-- through the leases of finished jobs, whose rows are dead but cannot be vacuumed while somebody holds an old snapshot.
--
-- Does the answer hide a lease that ran out? Only one that was not to be seen here and turns up below it. A lease that is being
-- renewed, ended or reaped is seen as it was before, earlier than whatever comes of it; one that `reap` passes over for its
-- lock, or for being too many, is seen as well. A new lease ends after now, unless its claim took longer to commit than the
-- lease lasts; a server's clock that was set back, and a restore, have the same effect. So ask without a bound now and then.
create or replace function faultline.first_expired(lower_bound timestamptz default '-infinity') returns timestamptz
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set jit = off
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
as $$
declare
  -- Before the look: a lease that runs out meanwhile is for the next one.
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
