-- Record a worker's heartbeat: which queues it serves, how many leases it holds, and on which queues it waits to be woken.
-- Returns the database's time, so that the worker can report how far its own clock is ahead. No decision depends on that.
-- `watched`: the worker holds its advisory lock, so that its death can be detected before its leases expire.
create or replace function faultline.heartbeat(
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
  perform faultline.check_name('the id of a worker', heartbeat.worker_id, 100, known => true);
  if position('/' in heartbeat.worker_id) > 0
    or num_nulls(heartbeat.host, heartbeat.pid, heartbeat.version, heartbeat.queues, heartbeat.sleeping, heartbeat.watched,
      heartbeat.leases) > 0
  then
    raise exception 'the heartbeat of worker % is refused: its id must not have a "/", and only clock_ahead_seconds may be null',
      heartbeat.worker_id using errcode = 'FL005', detail = 'Nothing was written.';
  end if;
  -- First, so that this heartbeat is later than the start of the run.
  perform faultline.run_noticed_at();
  insert into faultline.workers as w (
    id, started_at, heartbeat_at, watched, pid, host, version, queues, sleeping, leases, clock_ahead_seconds
  )
  values (
    heartbeat.worker_id, faultline.clock(), faultline.clock(), heartbeat.watched, heartbeat.pid, heartbeat.host, heartbeat.version,
    heartbeat.queues, heartbeat.sleeping, heartbeat.leases,
    -- Not a number is greater than all. Null is not known.
    case when heartbeat.clock_ahead_seconds is not null then least(greatest(heartbeat.clock_ahead_seconds, -1e9), 1e9) end
  )
  on conflict (id) do update
  set heartbeat_at = excluded.heartbeat_at, watched = excluded.watched, queues = excluded.queues, sleeping = excluded.sleeping,
    leases = excluded.leases, clock_ahead_seconds = excluded.clock_ahead_seconds;
  return faultline.clock();
end
$$;
