-- Prolong leases, each by its job's own length from now. Answers with the leases that were not prolonged.
-- Before: the caller holds the leases. After: the same token and owner, a later expiry.
--
-- A late beat is accepted until the job was reaped: nobody else has it.
-- A locked row is skipped and reported as busy: it is held by the job's own transaction, and nobody can reap it meanwhile.
create or replace function faultline.renew(
  job_ids uuid[],
  tokens bigint[],
  owners text[]
) returns setof faultline.refusal
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan
set jit = off
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
    select j.ctid, l.place
    from unnest(renew.job_ids, renew.tokens, renew.owners) with ordinality as l (job_id, token, owner, place)
    -- Looked up lease by lease. A plain join would be the planner's to turn round, and one that takes the table for empty
    -- (it was when it was last vacuumed) walks all of it for every batch.
    cross join lateral (
      select j.ctid
      from faultline.open_jobs j
      where j.id = l.job_id and j.fencing_token = l.token and j.lease_owner = l.owner
      for update of j skip locked
    ) j
  ),
  renewed as (
    update faultline.open_jobs j
    set lease_expires_at = faultline.clock() + make_interval(secs => j.lease_seconds),
        renewals = j.renewals + 1
    from held
    where j.ctid = held.ctid
    returning held.place
  )
  select array_agg(r.place) into done from renewed r;
  if coalesce(cardinality(done), 0) < cardinality(renew.job_ids) then
    return query select * from faultline.refuse('renew', renew.job_ids, renew.tokens, renew.owners, done);
  end if;
end
$$;
