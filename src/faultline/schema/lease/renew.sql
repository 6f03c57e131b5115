-- Renew leases, each for its job's own lease time from now. Returns the leases that were not renewed.
-- Before: the caller holds the leases. After: the same token and owner, a later expiry.
--
-- A late renewal is accepted until the job is reaped: no other owner has the job.
-- A locked row is skipped and reported as busy: the job's own transaction locks it, and it cannot be reaped meanwhile.
create or replace function faultline.renew(
  job_ids uuid[],
  tokens bigint[],
  owners text[]
) returns setof faultline.refusal
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set jit = off
set max_parallel_workers_per_gather = 0
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  done bigint[];
begin
  perform faultline.check_leases(renew.job_ids, renew.tokens, renew.owners);
  with held as materialized (
    select j.ctid, l.position
    from unnest(renew.job_ids, renew.tokens, renew.owners) with ordinality as l (job_id, token, owner, position)
    -- Looked up one by one, as in `complete`.
    join faultline.open_jobs j on j.id = any (array[l.job_id])
    where j.fencing_token = l.token and j.lease_owner = l.owner
    for update of j skip locked
  ),
  renewed as (
    update faultline.open_jobs j
    set lease_expires_at = faultline.clock() + make_interval(secs => j.lease_seconds),
        renewals = j.renewals + 1
    from held
    where j.ctid = held.ctid
    returning held.position
  )
  select array_agg(r.position) into done from renewed r;
  if coalesce(cardinality(done), 0) < cardinality(renew.job_ids) then
    return query select * from faultline.refuse('renew', renew.job_ids, renew.tokens, renew.owners, done);
  end if;
end
$$;
