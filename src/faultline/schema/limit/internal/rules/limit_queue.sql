-- Make a queue one with limits, and lock it for a change of them. Claims that hold it are waited for; what is granted after the
-- commit is granted under what the caller writes.
-- A row that is missing, deleted by hand or not restored, is written again: with the permits that jobs hold, behind the turns of
-- its groups, and with no tokens, since those that were taken are not known.
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
  if found and was then
    return;
  elsif not found then
    insert into faultline.limited_queues (queue, changed_second, tokens, refilled_at, arrival_virtual_time)
    select
      limit_queue.queue, extract(epoch from faultline.clock()), case when was then 0 end, case when was then faultline.clock() end,
      coalesce(max(g.virtual_time), 0)
    from faultline.groups g
    where g.queue = limit_queue.queue and g.ready;
  end if;
  update faultline.queues q set limited = true where q.name = limit_queue.queue;
  perform faultline.recount_queue(limit_queue.queue);
  -- All at once: what is enqueued after this stands in its group, and must not overtake what was enqueued before.
  perform faultline.move_due_jobs_into_groups(limit_queue.queue, faultline.clock(), 2147483647);
end
$$;
