-- Wait until a claim is on the disk whose commit did not wait for it (`claim`, `syncs`). Returns whether it is there: a crash
-- of the server may have taken it back, and then all of it. `job_id`, `token`, `owner`: of one of its leases.
-- Before: the claim is committed. After: it is as durable as the session's synchronous_commit makes a commit.
create or replace function faultline.sync_claim(job_id uuid, token bigint, owner text) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  perform faultline.require_synchronous_commit();
  -- Only what has written something waits for the disk; and it waits for all that was committed before.
  perform pg_logical_emit_message(true, 'faultline', '');
  return exists (
    select from faultline.open_jobs j
    where j.id = sync_claim.job_id and j.fencing_token = sync_claim.token and j.lease_owner = sync_claim.owner
  );
end
$$;
