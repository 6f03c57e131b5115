-- Steps of reap: which workers are dead, and which jobs are lost.

-- When the current run of the server (see `server_run`) was noticed. The first heartbeat or reap of a run records it.
-- Null while another session is recording it.
create or replace function faultline.run_noticed_at() returns timestamptz
language plpgsql volatile
as $$
declare
  run constant text := faultline.server_run();
  noticed_at timestamptz;
begin
  select s.server_run_noticed_at into noticed_at
  from faultline.settings s
  where s.server_run = run;
  if not found then
    update faultline.settings s
    set server_run = run,
        -- All heartbeats so far are of earlier runs, even if the clock of that server was ahead.
        server_run_noticed_at = greatest(faultline.clock(), (select max(w.heartbeat_at) from faultline.workers w))
    where s.ctid = any (array(select t.ctid from faultline.settings t for update skip locked))
    returning s.server_run_noticed_at into noticed_at;
  end if;
  return noticed_at;
end
$$;

-- The workers that have died, judged at this time. Their jobs are requeued before their leases expire.
-- A worker is dead if it has sent no heartbeat for 3 seconds, its session has ended (its advisory lock is free), and it
-- has either sent a heartbeat on the current run of the server (see `server_run`) or had 30 seconds to reconnect to it.
-- A new run ends every session and frees every lock, so a free lock proves nothing until the workers had time to reconnect.
-- A worker behind a transaction-mode pooler has no session of its own: `watched` is false, and it is never listed here.
-- A mistake is safe (the token refuses what such a worker still writes), but it uses up an attempt of each of its jobs.
create or replace function faultline.dead_workers(at timestamptz) returns setof text
language plpgsql volatile
as $$
declare
  noticed_at constant timestamptz := faultline.run_noticed_at();
begin
  return query
    with silent as materialized (
      select w.id
      from faultline.workers w
      where w.watched
        and w.heartbeat_at < dead_workers.at - interval '3 seconds'
        and (w.heartbeat_at > noticed_at or noticed_at < dead_workers.at - interval '30 seconds')
        -- A session can lock its own lock again: without this check, a worker that reaps in it would find itself dead.
        and not exists (
          select from pg_locks l
          where l.locktype = 'advisory'
            and l.pid = pg_backend_pid()
            and (l.classid::bigint << 32 | l.objid::bigint) = faultline.worker_lock(w.id)
        )
    )
    select s.id
    from silent s
    -- Held until this transaction ends: one reaper at a time looks after a dead worker's jobs.
    where pg_try_advisory_xact_lock(faultline.worker_lock(s.id));
end
$$;

-- Find and lock jobs whose lease has expired or whose worker is dead, the longest expired first, and judge each: see reap.
--   guilty   it must have killed its worker: this attempt counts
--   spent    this was its last attempt, and has run: the job fails
--   excused  the worker is alive, or may be: nothing counts against the job
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
create or replace function faultline.lost_jobs(
  at timestamptz, dead text[], notice_dead boolean, lower_bound timestamptz, max_jobs integer
) returns setof faultline.lost_job
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  -- Without dead workers, read expired leases only; otherwise all running jobs, which is rare and bounded.
  horizon constant timestamptz := case when cardinality(dead) > 0 then 'infinity'::timestamptz else at end;
  earliest constant timestamptz := case when cardinality(dead) > 0 then '-infinity' else lost_jobs.lower_bound end;
  -- Null: another session is recording a new run now.
  run_noticed_at constant timestamptz := coalesce(faultline.run_noticed_at(), at);
begin
  return query
    with crowds as materialized (
      select split_part(c.lease_owner, '/', 1) as worker, count(*) as started
      from faultline.open_jobs c
      where c.state = 'running' and c.started and c.lease_expires_at <= 'infinity'
      group by 1
    )
    select
      r.id,
      r.lease_owner,
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
        ),
      r.started and r.attempt >= r.max_attempts and not x.excused,
      x.excused,
      case when r.lease_expires_at <= at then 'lease_expired' else 'worker_lost' end
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
      and (lost_jobs.notice_dead or x.excused or not r.started)
    order by r.lease_expires_at
    limit lost_jobs.max_jobs
    for update of r skip locked;
end
$$;

-- Remove those of these workers of which no job is left: those with locked rows are reaped later. One that is alive after all
-- adds itself again with its next heartbeat. A worker whose row is locked is removed later: to wait for it would keep the jobs
-- of all the others.
create or replace function faultline.remove_dead_workers(dead text[]) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  with gone as (
    delete from faultline.workers w
    where w.ctid = any (array(
        select d.ctid from faultline.workers d where d.id = any (remove_dead_workers.dead) for update skip locked
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
end
$$;
