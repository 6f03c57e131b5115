-- Requeue jobs whose lease expired or whose worker died.
-- Before: running. After: queued at the same position, or failed; no owner, so that the old owner is refused even
-- before the next claim raises the token. Several reapers may run at once: each skips rows that another has locked.
-- A caller that has just reconnected after an outage, or was refused itself, passes `notice_dead => false`: other
-- workers may be reconnecting too. Then no worker counts as dead, and jobs whose attempt would count are not reaped.
-- `latest` is the latest time that a caller with a heartbeat expects of the server's clock: the answer to its last one, and
-- what has passed since by its own steady clock. Where the server's clock is ahead of that, it was set forward, and all
-- workers seem silent and all leases expired: the reap judges by `latest`.
-- `lower_bound` is a hint from `first_expired`: no held lease expired before it. It is not used if a worker is dead.
--
-- Does the lost attempt count? Yes, if this job must have killed its worker: its start is recorded (record_start), and
-- the worker lost no other job with a recorded start when it died, not even in an earlier pass. A last attempt with a
-- recorded start always ends the job as failed. Otherwise the attempt does not count: another job in the same worker
-- may have killed it.
-- `reaps` counts, so that the next claim asks for the mark and workers run such jobs with fewer others beside them.
-- After the first reap, an attempt without a recorded start has not run, and `reaps` stays.
--
-- A problem of the database never counts against a job. A worker with a recent heartbeat is alive: its lease expired
-- because its renewals were refused or delayed. A worker that has not had time to reconnect to the current run of the
-- server (see `server_run`) may be alive. For both, the attempt does not count and `reaps` stays. Both may still renew,
-- which is better than to run their jobs twice. So the leases of a live worker are left alone for 3 seconds after they
-- expire (a job's own transaction may have outlasted its lease), and those of the others for the first 5 seconds of a run.
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
  -- Without dead workers, read expired leases only; otherwise all running jobs, which is rare and bounded.
  horizon constant timestamptz := case when cardinality(dead) > 0 then 'infinity'::timestamptz else at end;
  earliest constant timestamptz := case when cardinality(dead) > 0 then '-infinity' else reap.lower_bound end;
  run_noticed_at timestamptz;
  ids uuid[];
  tokens bigint[];
  owners text[];
  states text[];
  reasons text[];
  queues text[];
  tasks text[];
  attempts smallint[];
  attempts_max smallint[];
  errors text[];
  call_ids bigint[];
  watched uuid[];
  parents uuid[];
  unique_ids uuid[];
begin
  perform faultline.check_most('max_jobs', reap.max_jobs);
  perform faultline.require_synchronous_commit();
  -- Every worker calls this every second, and there is rarely anything to do: then this one query is all it costs.
  if cardinality(dead) = 0
    and not exists (
      select from faultline.open_jobs e
      where e.state = 'running' and e.lease_expires_at >= earliest and e.lease_expires_at <= horizon
    )
  then
    return;
  end if;
  -- Null: another session is recording a new run now.
  run_noticed_at := coalesce(faultline.run_noticed_at(), at);
  with crowds as materialized (
    select split_part(c.lease_owner, '/', 1) as worker, count(*) as started
    from faultline.open_jobs c
    where c.state = 'running' and c.started and c.lease_expires_at <= 'infinity'
    group by 1
  ),
  lost as materialized (
    select
      r.ctid,
      r.lease_owner as owner,
      r.lease_expires_at,
      r.started,
      r.started and coalesce((select c.started from crowds c where c.worker = split_part(r.lease_owner, '/', 1)), 1) <= 1
        and not x.excused
        -- Only what was reaped since the last heartbeat or renewal: the worker did not run older ones when it died.
        and not exists (
          select from faultline.journal e
          where e.at > greatest(r.lease_expires_at - make_interval(secs => r.lease_seconds), w.heartbeat_at)
            and split_part(e.owner, '/', 1) = split_part(r.lease_owner, '/', 1)
            and e.detail @> '{"started": true}'
        ) as guilty,
      r.started and r.attempt >= r.max_attempts and not x.excused as spent,
      x.excused,
      case when r.lease_expires_at <= at then 'lease_expired' else 'worker_lost' end as reason
    from faultline.open_jobs r
    left join faultline.workers w on w.id = split_part(r.lease_owner, '/', 1)
    cross join lateral (
      select
        -- A heartbeat comes every second, and may be delayed by a lock. A dead worker's lease has at least two thirds
        -- of its time left, so a short lease needs a shorter silence than that: otherwise no attempt under it would
        -- ever count.
        coalesce(w.heartbeat_at > at - make_interval(secs => least(5, greatest(1.2, r.lease_seconds * 0.6))), false)
          and w.id <> all (dead) as alive,
        coalesce(w.heartbeat_at <= run_noticed_at and run_noticed_at > at - interval '30 seconds', false) as is_away
    ) h
    cross join lateral (
      select
        h.alive or h.is_away as excused,
        h.alive and r.lease_expires_at > at - interval '3 seconds'
          or h.is_away and run_noticed_at > at - interval '5 seconds' as may_still_renew
    ) x
    where r.state = 'running'
      and r.lease_expires_at >= earliest
      and r.lease_expires_at <= horizon
      and (r.lease_expires_at <= at or split_part(r.lease_owner, '/', 1) = any (dead))
      and not x.may_still_renew
      and (reap.notice_dead or x.excused or not r.started)
    order by r.lease_expires_at
    limit reap.max_jobs
    for update of r skip locked
  ),
  taken as (
    update faultline.open_jobs j
    set state = case when lost.spent then 'failed' else 'queued' end,
        finished_at = case when lost.spent then faultline.clock() end,
        last_error = case when lost.spent then 'the worker died or lost its lease during the last attempt' else j.last_error end,
        attempt = case when lost.guilty or lost.spent then j.attempt else j.attempt - 1::smallint end,
        reaps = case when not lost.excused and (j.started or j.reaps = 0) then least(j.reaps + 1, 32767)::smallint else j.reaps end,
        started = false,
        lease_owner = null,
        lease_expires_at = null
    from lost
    where j.ctid = lost.ctid
    returning
      j.id, j.fencing_token, lost.owner, j.state, j.attempt, lost.reason, lost.started,
      j.claimed_at, lost.lease_expires_at, j.renewals, j.queue, j.task, j.max_attempts, j.last_error,
      j.flow_id, j.call_id, j.watched, j.unique_key
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
  select array_agg(t.id), array_agg(t.fencing_token), array_agg(t.owner), array_agg(t.state), array_agg(t.reason),
    array_agg(t.queue), array_agg(t.task), array_agg(t.attempt), array_agg(t.max_attempts), array_agg(t.last_error),
    array_agg(t.call_id) filter (where t.call_id is not null and t.state = 'failed'),
    array_agg(t.id) filter (where t.watched and t.state = 'failed'),
    array_agg(t.id) filter (where t.flow_id is not null and t.state = 'failed'),
    array_agg(t.id) filter (where t.unique_key is not null and t.state = 'queued')
  into ids, tokens, owners, states, reasons, queues, tasks, attempts, attempts_max, errors, call_ids, watched, parents,
    unique_ids
  from taken t;
  if call_ids is not null or watched is not null then
    perform faultline.nudge_waiters(call_ids, watched, true);
  end if;
  if parents is not null then
    insert into faultline.sweeps (job_id) select p.id from unnest(parents) as p (id);
  end if;
  if unique_ids is not null then
    perform faultline.supersede(unique_ids);
  end if;
  perform faultline.wake_for(ids);
  if cardinality(dead) > 0 then
    -- Remove a dead worker once all its jobs are reaped: those with locked rows are reaped later. If it is alive after
    -- all, its next heartbeat adds it again. A worker whose row is locked is removed later: waiting for it would keep the
    -- jobs of all the others.
    with gone as (
      delete from faultline.workers w
      where w.ctid = any (array(
          select d.ctid from faultline.workers d where d.id = any (dead) for update skip locked
        ))
        and not exists (
          select from faultline.open_jobs j
          where j.state = 'running' and split_part(j.lease_owner, '/', 1) = w.id
        )
      returning w.id, w.host, w.pid, w.heartbeat_at
    )
    insert into faultline.journal (at, event, owner, detail)
    select faultline.clock(), 'worker_lost', g.id, jsonb_build_object('host', g.host, 'pid', g.pid, 'last_heartbeat', g.heartbeat_at)
    from gone g;
  end if;
  return query select * from unnest(ids, tokens, owners, states, reasons, queues, tasks, attempts, attempts_max, errors);
end
$$;
