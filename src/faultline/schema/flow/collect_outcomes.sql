-- Take what became of the jobs that a call waits for. Returns one row:
--   taken    all have ended, or one has failed and the call is over by that (policy `fast`). It is history now
--   timeout  the time is over and some are still open. That is history too
--   closed   another call of its race was over first
--   open     some are still open: suspend
--   stale    the lease is lost, for this reason; nothing was written
-- `result` is {"failed": {index: {"state", "error"}}, "results": {index: …}}: who has failed, and the results of jobs that are not
-- pruned with this flow. All others have succeeded, and `outcomes` has their results. A later run of the program reads this, and
-- not what has become of the jobs since: one of them may be retried, or pruned. The first 100 errors are kept whole, of the others
-- the first 200 characters: those of 100,000 jobs would be more than a history can have.
-- Before: the caller holds the lease. Sent again, it returns what it returned.
create or replace function faultline.collect_outcomes(
  job_id uuid,
  fencing_token bigint,
  owner text,
  number text
) returns table (
  status text,
  result jsonb,
  reason text,
  current_token bigint
)
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
  at timestamptz;
  call faultline.calls;
  flow uuid;
  still_open bigint;
  failed jsonb;
  results jsonb;
begin
  perform faultline.read_committed('collect_outcomes');
  perform faultline.require_synchronous_commit();
  if not faultline.lock_lease(collect_outcomes.job_id, collect_outcomes.fencing_token, collect_outcomes.owner) then
    return query
      select 'stale', null::jsonb, r.reason, r.current_token
      from faultline.refuse('collect_outcomes', array[collect_outcomes.job_id], array[collect_outcomes.fencing_token], array[collect_outcomes.owner], '{}') r;
    return;
  end if;
  -- Locked before its jobs are looked at: a retry of one of them locks the call too, and is refused once it is taken.
  select c.* into call from faultline.calls c where c.job_id = collect_outcomes.job_id and c.number = collect_outcomes.number for update;
  if call.id is null or call.kind not in ('children', 'watch', 'after') then
    raise exception 'job % has no call % that waits for jobs', collect_outcomes.job_id, collect_outcomes.number
      using errcode = 'FL005', hint = 'spawn its children first, or watch a job';
  end if;
  if call.ended_at is null then
    at := faultline.clock();
    select j.flow_id into flow from faultline.open_jobs j where j.id = collect_outcomes.job_id;
    if call.spawned < call.total then
      still_open := call.total - call.spawned;
    else
      -- In one statement, after the lock: a job is open or in the ledger, and what was committed before is seen.
      select
        count(*) filter (where o.state in ('queued', 'running') and not o.is_done),
        jsonb_object_agg(o.index, case when o.state is not null
          then jsonb_build_object('state', o.state, 'error', case when o.nth <= 100 then o.last_error else left(o.last_error, 200) end)
          else jsonb_build_object('state', 'pruned', 'error', 'it was pruned before its end was looked at')
        end) filter (where o.has_failed),
        jsonb_object_agg(o.index, o.result) filter (where o.is_done and o.flow_id is distinct from flow)
      into still_open, failed, results
      from (
        select
          e.index, j.state, j.last_error, f.job_id is not null as is_done, f.result, f.flow_id, k.has_failed,
          count(*) filter (where k.has_failed) over (order by e.index rows unbounded preceding) as nth
        from faultline.edges e
        -- Looked up one by one, as in `complete`.
        left join faultline.ledger f on f.job_id = any (array[e.job_id])
        -- Of those that are not in the ledger only.
        left join lateral (
          select x.state, x.last_error from faultline.open_jobs x where x.id = any (array[e.job_id]) and f.job_id is null offset 0
        ) j on true
        cross join lateral (
          select f.job_id is null and coalesce(j.state not in ('queued', 'running'), true) as has_failed
        ) k
        where e.call_id = call.id
      ) o;
    end if;
    if still_open = 0 or (failed is not null and call.policy = 'fast') then
      call.outcome := case when failed is not null and call.policy in ('raise', 'fast', 'cancel') then 'failed' else 'done' end;
      call.result := jsonb_build_object('failed', coalesce(failed, '{}'), 'results', coalesce(results, '{}'));
    elsif call.until <= at then
      call.outcome := 'timeout';
    end if;
    if call.outcome is not null then
      update faultline.calls c
      set fencing_token = collect_outcomes.fencing_token, awaited = false, ended_at = at, outcome = call.outcome, result = call.result,
          ended_moment = case when call.outcome = 'failed' then nextval(pg_get_serial_sequence('faultline.calls', 'id')) end
      where c.id = call.id;
    end if;
  end if;
  return query
    select
      case when call.outcome is null then 'open' when call.outcome in ('done', 'failed') then 'taken' else call.outcome end,
      call.result, null::text, null::bigint;
end
$$;
