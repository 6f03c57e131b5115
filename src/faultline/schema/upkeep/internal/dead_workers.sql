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
