-- Lock the row of one job. Returns whether the caller holds its lease; if not, the verb must write nothing.
-- Waits for the lock, so that a verb for a single job never returns `busy`.
create or replace function faultline.lock_lease(job_id uuid, fencing_token bigint, owner text) returns boolean
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  perform
  from faultline.open_jobs j
  where j.id = lock_lease.job_id and j.fencing_token = lock_lease.fencing_token and j.lease_owner = lock_lease.owner
  for update;
  return found;
end
$$;
