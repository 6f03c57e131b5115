-- Fence this transaction: raise FL001 if the lease is lost. Call it first, before the effects.
-- After: the job's row is locked until the transaction ends, so no session can reap, cancel or claim the job before the
-- effects are committed. An expired lease is refused, though `complete` would accept it: here the effects are still to
-- come.
--
-- Only a lock on the row is safe. With a unique key on (job, token), a check before the write, or the lock of a foreign
-- key, there is an order of steps in which a stale effect is committed.
create or replace function faultline.fence(job_id uuid, fencing_token bigint, owner text) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan
as $$
#variable_conflict use_column
declare
  lease_expires_at timestamptz;
  verdict record;
begin
  perform faultline.require_synchronous_commit();
  select j.lease_expires_at into lease_expires_at
  from faultline.open_jobs j
  where j.id = fence.job_id and j.fencing_token = fence.fencing_token and j.lease_owner = fence.owner
  for update;
  -- Read the clock after the lock: the lease may have expired during the wait.
  if found and lease_expires_at > faultline.clock() then
    return;
  end if;
  select case v.reason when 'held' then 'lease_expired' else v.reason end as reason, v.current_token into verdict
  from faultline.lease_status(fence.job_id, fence.fencing_token, fence.owner) v;
  raise exception 'stale lease: job % token % (%)', fence.job_id, fence.fencing_token, verdict.reason
    using errcode = 'FL001',
          detail = json_build_object(
            'job_id', fence.job_id, 'stale_token', fence.fencing_token,
            'current_token', verdict.current_token, 'reason', verdict.reason
          )::text,
          hint = 'roll back, and let the worker that holds the lease finish the job';
end
$$;
