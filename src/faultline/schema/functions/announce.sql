-- Say which tasks this worker knows, so that jobs of tasks that no worker knows can be found.
-- Answers whether the worker is on the list: it has to beat first. Apart from `beat`, which is sent every second: this is not.
create or replace function faultline.announce(worker_id text, tasks text[]) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  update faultline.workers w
  set tasks = announce.tasks
  where w.id = announce.worker_id and w.tasks is distinct from announce.tasks;
  return exists (select from faultline.workers w where w.id = announce.worker_id);
end
$$;
