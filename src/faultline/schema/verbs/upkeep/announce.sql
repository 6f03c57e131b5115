-- Record which tasks this worker knows, to find jobs whose task no worker knows, and how many connections it may open,
-- which declarations of schedules its code has (digests), and which budgets and queues (names). Null: it does not say.
-- Returns whether the worker is listed: it must call `beat` first. Not part of `beat`, which is called every second.
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
  set tasks = announce.tasks, connections_max = announce.connections_max,
    schedules = coalesce(announce.schedules, w.schedules), budgets = coalesce(announce.budgets, w.budgets),
    limits = coalesce(announce.limits, w.limits)
  where w.id = announce.worker_id
    and (w.tasks, w.connections_max, w.schedules, w.budgets, w.limits) is distinct from (
      announce.tasks, announce.connections_max, coalesce(announce.schedules, w.schedules),
      coalesce(announce.budgets, w.budgets), coalesce(announce.limits, w.limits)
    );
  return exists (select from faultline.workers w where w.id = announce.worker_id);
end
$$;
