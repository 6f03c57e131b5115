-- The workers that are surely dead, so that their jobs need not wait until their leases expire.
-- Dead means: no heartbeat for 3 seconds, and the advisory lock that the worker's own session holds is free, and the worker
-- has had a heartbeat on the current run of the server (see `server_run`), or 30 seconds to reconnect to it.
-- At the beginning of a run every worker has just lost its session and its lock, so at first nobody is judged, whatever the
-- caller decided before the outage.
-- Workers behind a transaction-mode pooler have no session of their own and are never judged here (`watched` is false).
-- A wrong verdict breaks nothing (the token refuses what such a worker still writes), but uses up an attempt of its jobs.
create or replace function faultline.dead_workers() returns setof text
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
        and w.beat_at < faultline.clock() - interval '3 seconds'
        -- A worker without a heartbeat on this run may still be reconnecting.
        and (w.beat_at > noticed_at or noticed_at < faultline.clock() - interval '30 seconds')
        -- A session may take its own lock once more: a worker that reaps there must not judge itself dead.
        and not exists (
          select from pg_locks l
          where l.locktype = 'advisory'
            and l.pid = pg_backend_pid()
            and (l.classid::bigint << 32 | l.objid::bigint) = faultline.worker_lock(w.id)
        )
    )
    select s.id
    from silent s
    -- Free only if the worker's session is gone. Kept until this transaction ends, so two reapers do not both bury it.
    where pg_try_advisory_xact_lock(faultline.worker_lock(s.id));
end
$$;
