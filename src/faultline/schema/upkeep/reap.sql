-- Requeue jobs whose lease expired or whose worker died.
-- Before: running. After: queued at the same position, or failed; no owner, so that the old owner is refused even
-- before the next claim raises the token. Several reapers may run at once: each skips rows that another has locked.
-- A caller that has just reconnected after an outage, or was refused itself, passes `notice_dead => false`: other
-- workers may be reconnecting too. Then no worker counts as dead, and jobs whose attempt would count are not reaped.
-- `latest` is the latest time that a caller with a heartbeat expects of the server's clock: the answer to its last one, and
-- what has passed since by its own steady clock. Where the server's clock is ahead of that, it was set forward, and all
-- workers seem silent and all leases expired: the reap judges by `latest`.
-- `lower_bound` is a hint from `first_expired`: no held lease expired before it. It is not used if a worker is dead.
-- Which are lost, and whose attempt counts: see lost_jobs.
create or replace function faultline.reap(
  max_jobs integer default 1000,
  notice_dead boolean default true,
  lower_bound timestamptz default '-infinity',
  latest timestamptz default 'infinity'
) returns table (
  job_id uuid,
  fencing_token bigint,
  owner text,
  state text,
  reason text,
  queue text,
  task text,
  attempt smallint,
  max_attempts smallint,
  last_error text
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
  -- Read once. Not `now()`, which does not advance in a loop of PL/pgSQL.
  at constant timestamptz := least(faultline.clock(), reap.latest);
  dead constant text[] := case when reap.notice_dead then array(select faultline.dead_workers(at)) else '{}' end;
  lost faultline.lost_job[];
  -- What has failed and is of a flow, or waited for.
  ended_badly uuid[];
  unique_ids uuid[];
begin
  perform faultline.check_most('max_jobs', reap.max_jobs);
  perform faultline.require_synchronous_commit();
  -- Every worker calls this every second, and there is rarely anything to do: then this one query is all it costs.
  if cardinality(dead) = 0
    and not exists (
      select from faultline.open_jobs e
      where e.state = 'running' and e.lease_expires_at >= reap.lower_bound and e.lease_expires_at <= at
    )
  then
    return;
  end if;
  lost := array(select l from faultline.lost_jobs(at, dead, reap.notice_dead, reap.lower_bound, reap.max_jobs) l);
  with taken as (
    update faultline.open_jobs j
    set state = case when l.spent then 'failed' else 'queued' end,
        finished_at = case when l.spent then faultline.clock() end,
        last_error = case when l.spent then 'the worker died or lost its lease during the last attempt' else j.last_error end,
        attempt = case when l.guilty or l.spent then j.attempt else j.attempt - 1::smallint end,
        reaps = case when not l.excused and (l.started or j.reaps = 0) then least(j.reaps + 1, 32767)::smallint else j.reaps end,
        started = false,
        lease_owner = null,
        lease_expires_at = null
    from unnest(lost) l
    -- Looked up one by one, as in `complete`.
    where j.id = any (array[l.job_id])
    returning
      j.id, j.fencing_token, l.owner, j.state, j.attempt, l.reason, l.started, j.claimed_at, l.lease_expires_at, j.renewals,
      j.flow_id, j.watched, j.unique_key
  ),
  recorded as (
    insert into faultline.journal (at, job_id, event, fencing_token, owner, detail)
    select
      faultline.clock(), t.id, 'lease_reaped', t.fencing_token, t.owner,
      jsonb_build_object('reason', t.reason, 'state', t.state, 'attempt', t.attempt, 'started', t.started)
        || faultline.lease_details(t.claimed_at, t.lease_expires_at, t.renewals)
    from taken t
    order by t.id
  )
  select
    array_agg(t.id) filter (where t.state = 'failed' and (t.flow_id is not null or t.watched)),
    array_agg(t.id) filter (where t.state = 'queued' and t.unique_key is not null)
  into ended_badly, unique_ids
  from taken t;
  if ended_badly is not null then
    perform faultline.end_badly(ended_badly);
  end if;
  if unique_ids is not null then
    perform faultline.supersede(unique_ids);
  end if;
  perform faultline.wake_for(array(select l.job_id from unnest(lost) l));
  if cardinality(dead) > 0 then
    perform faultline.remove_dead_workers(dead);
  end if;
  return query
    select
      j.id, j.fencing_token::bigint, l.owner, case when l.spent then 'failed' else 'queued' end, l.reason, j.queue::text,
      j.task::text, j.attempt, j.max_attempts::smallint, j.last_error
    from unnest(lost) l
    join faultline.open_jobs j on j.id = any (array[l.job_id]);
end
$$;
