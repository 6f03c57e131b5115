-- The workers that are surely gone, so that their jobs need not wait for their leases to run out.
-- Gone means: no beat for 3 seconds, and the lock that lives and dies with the worker's own session is free, and after
-- a restart of the server it had come back, or time enough to.
-- Workers behind a transaction-mode pooler have no session of their own and are never judged here (`watched` is false).
-- A wrong verdict wastes work and breaks nothing: the token refuses whatever such a worker still writes.
create or replace function faultline.dead_workers() returns setof text
language plpgsql volatile
as $$
begin
  return query
    with silent as materialized (
      select w.id
      from faultline.workers w
      where w.watched
        and w.beat_at < faultline.clock() - interval '3 seconds'
        -- One that has not beaten since the server came up may still be on its way back.
        and (
          w.beat_at > pg_postmaster_start_time()
          or pg_postmaster_start_time() < faultline.clock() - interval '30 seconds'
        )
        -- A session may take its own lock once more: a worker that reaps there must not bury itself.
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
