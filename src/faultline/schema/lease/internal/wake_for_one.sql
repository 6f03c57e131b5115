-- Wake workers for one plain job that was just inserted and is due, as `enqueue_many` does for several. `late`: workers may have
-- claimed beyond its position by the time it is committed, so all of them hear of it; otherwise a few of those that sleep.
create or replace function faultline.wake_for_one(
  job_id uuid, queue text, priority integer, due timestamptz, at timestamptz, late boolean
) returns void
language plpgsql volatile
as $$
declare
  position constant text := concat(priority, ' ', least(due, transaction_timestamp()), ' ', queue);
  chosen text[];
begin
  if late then
    -- Once per transaction and position. PostgreSQL removes duplicate notifications too, but only after the work is done.
    if current_setting('faultline.woken', true) is distinct from position
      and exists (select from faultline.workers w where wake_for_one.queue = any (w.queues))
    then
      perform faultline.wake(queue, priority, least(due, transaction_timestamp()));
      perform set_config('faultline.woken', position, true);
    end if;
  elsif exists (select from faultline.workers w where wake_for_one.queue = any (w.sleeping)) then
    chosen := array(
      select w.id
      from faultline.workers w
      where wake_for_one.queue = any (w.sleeping)
        and w.heartbeat_at > at - interval '3 seconds' and octet_length(to_json(w.id)::text) <= 100
      order by random()
      limit 3
    );
    perform faultline.wake(queue, priority, transaction_timestamp(), nullif(chosen, '{}'), array[job_id]);
  end if;
end
$$;
