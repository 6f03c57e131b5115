-- Let another worker claim first from a queue whose permits are all in use. A worker with as many slots as the queue has permits
-- would get back each permit that it frees: it claims at once, and no other worker is woken. Returns whether one was woken
-- here; then wait a moment before you claim.
create or replace function faultline.yield_to_waiting_worker(queue text, worker_id text) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  return exists (select from faultline.limited_queues s where s.queue = yield_to_waiting_worker.queue and s.has_unmet_demand)
    and faultline.wake_one(yield_to_waiting_worker.queue, yield_to_waiting_worker.worker_id);
end
$$;
