-- Record that these attempts are about to run. Returns the leases that are lost or busy: do not run those.
-- Before: the caller holds the leases. After: `started` is set; if the worker dies now, the attempt counts.
--
-- A worker claims more jobs than it runs at once. If it dies, this mark distinguishes the job that may have killed it
-- from those that were only waiting in it. `claim` returns which attempts need the mark (`needs_start_record`).
create or replace function faultline.record_start(
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
  perform faultline.check_leases(record_start.job_ids, record_start.tokens, record_start.owners);
  perform faultline.require_synchronous_commit();
  with held as materialized (
    select j.ctid, l.position
    from unnest(record_start.job_ids, record_start.tokens, record_start.owners) with ordinality as l (job_id, token, owner, position)
    -- Looked up one by one, as in `complete`.
    join faultline.open_jobs j on j.id = any (array[l.job_id])
    where j.fencing_token = l.token and j.lease_owner = l.owner
    for update of j skip locked
  ),
  marked as (
    update faultline.open_jobs j
    set started = true
    from held
    where j.ctid = held.ctid
    returning held.position
  )
  select array_agg(m.position) into done from marked m;
  if coalesce(cardinality(done), 0) < cardinality(record_start.job_ids) then
    return query
      select * from faultline.refuse(
        'record_start', record_start.job_ids, record_start.tokens, record_start.owners, done
      );
  end if;
end
$$;
