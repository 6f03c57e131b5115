-- Record which tasks this worker knows, to find jobs whose task no worker knows, and how many connections it may open,
-- which declarations of schedules its code has (digests), and which budgets and queues (names). Null: it does not say.
-- Returns whether the worker is listed: it must call `heartbeat` first. Not part of `heartbeat`, which is called every
-- second.
create or replace function faultline.announce(
  worker_id text,
  tasks text[],
  connections_max integer default null,
  schedules text[] default null,
  budgets text[] default null,
  limits text[] default null
) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  update faultline.workers w
  set tasks = announce.tasks, connections_max = announce.connections_max, schedules = announce.schedules,
    budgets = announce.budgets, limits = announce.limits
  where w.id = announce.worker_id
    and (w.tasks, w.connections_max, w.schedules, w.budgets, w.limits)
      is distinct from (announce.tasks, announce.connections_max, announce.schedules, announce.budgets, announce.limits);
  return exists (select from faultline.workers w where w.id = announce.worker_id);
end
$$;
