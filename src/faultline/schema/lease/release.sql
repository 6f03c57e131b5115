-- Release unfinished jobs: queue them again without using up an attempt. Returns the leases for which nothing was written.
-- Before: the caller holds the leases. After: queued, no owner, the token unchanged, one attempt less.
-- A job keeps its position in the queue, unless `delays_seconds` has a delay for its lease.
--
-- The owner is cleared so that late writes of this worker are refused even before the job is claimed again.
create or replace function faultline.release(
  job_ids uuid[],
  tokens bigint[],
  owners text[],
  delays_seconds float8[] default null
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
  ids uuid[];
  unique_ids uuid[];
begin
  perform faultline.check_leases(release.job_ids, release.tokens, release.owners);
  if exists (select from unnest(release.delays_seconds) as d (seconds) where d.seconds not between 0 and 31536000) then
    raise exception 'a delay must be between 0 and 31536000 seconds' using errcode = 'FL005';
  end if;
  perform faultline.require_synchronous_commit();
  with held as materialized (
    select j.ctid, l.position, release.delays_seconds[l.position] as delay_seconds
    from unnest(release.job_ids, release.tokens, release.owners) with ordinality as l (job_id, token, owner, position)
    -- Looked up one by one, as in `complete`.
    join faultline.open_jobs j on j.id = any (array[l.job_id])
    where j.fencing_token = l.token and j.lease_owner = l.owner
    for update of j skip locked
  ),
  released as (
    update faultline.open_jobs j
    set state = 'queued',
        lease_owner = null,
        lease_expires_at = null,
        started = false,
        attempt = j.attempt - 1::smallint,
        next_run_at = case
          when held.delay_seconds is null then j.next_run_at
          when j.takes is not null and faultline.budget_raised_since_asked(j.id) then faultline.clock()
          else faultline.clock() + make_interval(secs => held.delay_seconds)
        end
    from held
    where j.ctid = held.ctid
    returning j.id, held.position, j.unique_key
  )
  select array_agg(r.position), array_agg(r.id), array_agg(r.id) filter (where r.unique_key is not null)
  into done, ids, unique_ids
  from released r;
  if unique_ids is not null then
    perform faultline.supersede(unique_ids);
  end if;
  perform faultline.wake_for(ids);
  if coalesce(cardinality(done), 0) < cardinality(release.job_ids) then
    return query select * from faultline.refuse('release', release.job_ids, release.tokens, release.owners, done);
  end if;
end
$$;
