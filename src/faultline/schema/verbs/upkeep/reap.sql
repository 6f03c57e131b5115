-- Requeue jobs whose lease expired or whose worker died.
-- Before: running. After: queued again at the same position, or failed; no owner, so that the old holder is refused even
-- before the next claim raises the token. Any number of reapers may run at once: each skips what another has locked.
-- A caller that has only just reconnected after an outage, or was refused itself, passes `notice_dead => false`: the others may
-- be reconnecting too. Then no worker counts as dead, and what would cost a silent worker's job an attempt is left alone.
-- `lower_bound` is a hint: no lease that is still held expired before it (first_expired). It is not used if a worker is dead.
--
-- Does the lost attempt count? Yes, if its start is on record (mark_started) and no other start of the same worker was when
-- it died, also none that was taken back in an earlier pass: then it is this job that the worker died of. A last attempt whose start is on record ends the job as failed in any case.
-- Otherwise the attempt is given back: the job may only have been waiting, or running, beside the one that killed the worker.
-- `reaps` is counted, so that the next claim asks for the mark, and workers run such jobs with less and less company. From
-- the first one on, a start that is not on record was none: a job that only waited is not suspected any further.
--
-- Nothing that the database did counts against a job. A worker with a recent heartbeat is alive: its lease ran out because its
-- renewals were refused or had to wait, so the attempt is given back and the job is not suspected. The same holds for a worker
-- that has not had time to come back to this run of the server (see `server_run`). Both may still renew, which is better than
-- to run their jobs twice: a living worker for 3 seconds (a job's own transaction that outlasted the lease has just ended), the
-- others for the first 5 seconds of a run. So long their leases are left alone.
create or replace function faultline.reap(
  max_jobs integer default 1000,
  notice_dead boolean default true,
  lower_bound timestamptz default '-infinity'
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
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  -- Once, for all that follows. And not `now()`, which stands still in a loop of PL/pgSQL.
  at constant timestamptz := faultline.clock();
  dead constant text[] := case when reap.notice_dead then array(select faultline.dead_workers()) else '{}' end;
  -- Without dead workers only expired leases are looked at; with some, every running job is, which is rare and bounded.
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
begin
  perform faultline.durable();
  -- Every worker asks every second, and hardly ever is there anything: then one look at the leases is all that it costs.
  if cardinality(dead) = 0
    and not exists (
      select from faultline.open_jobs e
      where e.state = 'running' and e.lease_expires_at >= earliest and e.lease_expires_at <= horizon
    )
  then
    return;
  end if;
  -- Not known: somebody is noting a new run at this moment.
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
        -- Since the last sign of life of this worker: what was taken from it before that, it did not have when it died.
        and not exists (
          select from faultline.journal e
          where e.at > greatest(r.lease_expires_at - make_interval(secs => r.lease_seconds), w.beat_at)
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
        -- A heartbeat comes every second, and may have to wait for a lock. Short leases are judged by a shorter silence, less
        -- than the two thirds that are left of a lease at least when its worker dies: or no attempt under them would count.
        coalesce(w.beat_at > at - make_interval(secs => least(5, greatest(1.2, r.lease_seconds * 0.6))), false)
          and w.id <> all (dead) as alive,
        coalesce(w.beat_at <= run_noticed_at and run_noticed_at > at - interval '30 seconds', false) as is_away
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
      j.claimed_at, lost.lease_expires_at, j.renewals, j.queue, j.task, j.max_attempts, j.last_error
  ),
  recorded as (
    insert into faultline.journal (at, job_id, event, fencing_token, owner, detail)
    select
      faultline.clock(), t.id, 'lease_reaped', t.fencing_token, t.owner,
      jsonb_build_object('reason', t.reason, 'state', t.state, 'attempt', t.attempt, 'started', t.started)
        || faultline.epoch(t.claimed_at, t.lease_expires_at, t.renewals)
    from taken t
    order by t.id
  )
  select array_agg(t.id), array_agg(t.fencing_token), array_agg(t.owner), array_agg(t.state), array_agg(t.reason),
    array_agg(t.queue), array_agg(t.task), array_agg(t.attempt), array_agg(t.max_attempts), array_agg(t.last_error)
  into ids, tokens, owners, states, reasons, queues, tasks, attempts, attempts_max, errors
  from taken t;
  perform faultline.wake_for(ids);
  if cardinality(dead) > 0 then
    -- Off the list once nothing of theirs is left; a job whose row was locked just now is looked for again. Should one of
    -- them live after all, its next beat puts it back.
    with gone as (
      delete from faultline.workers w
      where w.id = any (dead)
        and not exists (
          select from faultline.open_jobs j
          where j.state = 'running' and split_part(j.lease_owner, '/', 1) = w.id
        )
      returning w.id, w.host, w.pid, w.beat_at
    )
    insert into faultline.journal (at, event, owner, detail)
    select faultline.clock(), 'worker_lost', g.id, jsonb_build_object('host', g.host, 'pid', g.pid, 'last_beat', g.beat_at)
    from gone g;
  end if;
  return query select * from unnest(ids, tokens, owners, states, reasons, queues, tasks, attempts, attempts_max, errors);
end
$$;
