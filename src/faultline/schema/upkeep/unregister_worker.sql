-- Remove a worker from the list when it stops. Leases that it still holds expire as usual.
create or replace function faultline.unregister_worker(worker_id text) returns void
language sql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan
as $$
  delete from faultline.workers where id = worker_id;
$$;
