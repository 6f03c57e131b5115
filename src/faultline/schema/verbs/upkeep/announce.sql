-- Record which tasks this worker knows, to find jobs whose task no worker knows, and how many connections it may open.
-- Returns whether the worker is listed: it must call `beat` first. Not part of `beat`, which is called every second.
create or replace function faultline.announce(
  worker_id text,
  tasks text[],
  connections_max integer default null
) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  update faultline.workers w
  set tasks = announce.tasks, connections_max = announce.connections_max
  where w.id = announce.worker_id
    and (w.tasks, w.connections_max) is distinct from (announce.tasks, announce.connections_max);
  return exists (select from faultline.workers w where w.id = announce.worker_id);
end
$$;
