-- Make a queue one with limits, and lock it for a change of them. Claims that hold it are waited for; what is granted after the
-- commit is granted under what the caller writes.
create or replace function faultline.limit_queue(queue text) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  was boolean;
begin
  perform faultline.check_name('the name of a queue', limit_queue.queue, 100);
  insert into faultline.queues (name) values (limit_queue.queue) on conflict do nothing;
  select q.limited into was from faultline.queues q where q.name = limit_queue.queue for update;
  perform from faultline.limited_queues l where l.queue = limit_queue.queue for update;
  if was then
    return;
  end if;
  update faultline.queues q set limited = true where q.name = limit_queue.queue;
  insert into faultline.limited_queues (queue, changed_second)
  values (limit_queue.queue, extract(epoch from faultline.clock()));
  perform faultline.permit_running_jobs(limit_queue.queue);
  -- All at once: what is enqueued after this stands in its group, and must not overtake what was enqueued before.
  perform faultline.move_due_jobs_into_groups(limit_queue.queue, faultline.clock(), 2147483647);
end
$$;
