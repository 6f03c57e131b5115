-- Record a worker's heartbeat: which queues it serves, how many leases it holds, and on which queues it waits to be woken.
-- Returns the database's time, so that the worker can report how far its own clock is ahead. No decision depends on that.
-- `watched`: the worker holds its advisory lock, so that its death can be detected before its leases expire.
create or replace function faultline.beat(
  worker_id text,
  host text,
  pid integer,
  version text,
  queues text[],
  sleeping text[] default '{}',
  watched boolean default false,
  leases integer default 0,
  clock_ahead_seconds double precision default null
) returns timestamptz
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan
as $$
begin
  -- First, so that this heartbeat is later than the start of the run.
  perform faultline.run_noticed_at();
  insert into faultline.workers as w (
    id, started_at, beat_at, watched, pid, host, version, queues, sleeping, leases, clock_ahead_seconds
  )
  values (
    beat.worker_id, faultline.clock(), faultline.clock(), beat.watched, beat.pid, beat.host, beat.version,
    beat.queues, beat.sleeping, beat.leases, beat.clock_ahead_seconds
  )
  on conflict (id) do update
  set beat_at = excluded.beat_at, watched = excluded.watched, queues = excluded.queues, sleeping = excluded.sleeping,
    leases = excluded.leases, clock_ahead_seconds = excluded.clock_ahead_seconds;
  return faultline.clock();
end
$$;
