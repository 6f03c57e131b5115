-- Apply the events of one queue with limits; once a minute all of them, whatever their numbers: a net under every mistake.
-- Recount its permits if `miscounted`. Forget groups that have nothing left, up to `most`. Returns how many.
create or replace function faultline.maintain_queue(queue text, most integer, miscounted boolean) returns integer
language plpgsql volatile
-- Custom plans: a generic one, made here, would be the one that claims of this session have, too.
set plan_cache_mode = force_custom_plan
set jit = off
set max_parallel_workers_per_gather = 0
as $$
#variable_conflict use_column
declare
  due constant timestamptz := faultline.clock();
  was faultline.limited_queues;
  limited_queue faultline.limited_queues;
  apply_all boolean;
  forgotten integer;
begin
  select l.* into was
  from faultline.limited_queues l
  where l.queue = maintain_queue.queue
  order by l.changed_second desc
  limit 1
  for update skip locked;
  if not found then
    -- Locked by another session, or missing: then nothing would be granted until it is written again.
    if not exists (select from faultline.limited_queues l where l.queue = maintain_queue.queue) then
      perform from faultline.queues q where q.name = maintain_queue.queue for update skip locked;
      if found then
        perform faultline.limit_queue(maintain_queue.queue);
      end if;
    end if;
    return 0;
  end if;
  limited_queue := was;
  apply_all := limited_queue.all_events_applied_at not between due - interval '1 minute' and due + interval '1 second';
  if apply_all then
    limited_queue.all_events_applied_at := due;
    limited_queue.seen_to := '0';
    limited_queue.seen_open := '{}';
  end if;
  limited_queue := (faultline.apply_group_events(limited_queue, due)).limited_queue;
  -- Virtual times only grow, and the steps between groups are small: far from zero, a double would lose them.
  if limited_queue.virtual_time > 1e6 then
    update faultline.groups g
    set virtual_time = g.virtual_time - limited_queue.virtual_time
    where g.queue = maintain_queue.queue;
    limited_queue.arrival_virtual_time := limited_queue.arrival_virtual_time - limited_queue.virtual_time;
    limited_queue.virtual_time := 0;
  end if;
  perform faultline.save_limited_queue(was, limited_queue, due);
  if apply_all then
    -- A time that was set while the clock was ahead is no time.
    update faultline.groups g
    set ready = g.has_waiting, not_before = null
    where g.queue = maintain_queue.queue and g.not_before is not null and g.changed_second > extract(epoch from due) + 1;
    -- A group behind the virtual time of its queue: claims would not see it.
    update faultline.groups g
    set virtual_time = limited_queue.arrival_virtual_time
    where g.queue = maintain_queue.queue and g.ready and g.holding_per_weight = 0
      and g.virtual_time < limited_queue.virtual_time;
  end if;
  forgotten := faultline.forget_groups(maintain_queue.queue, due, maintain_queue.most);
  if maintain_queue.miscounted then
    perform faultline.recount_queue(maintain_queue.queue);
  end if;
  return forgotten;
end
$$;
