-- Whether a group of a queue has a job that may be granted. Of those that hold nothing, from the queue's virtual time on, as in
-- pick_groups. In order, so that no other index fits.
create or replace function faultline.has_ready_group(limited_queue faultline.limited_queues) returns boolean
language plpgsql stable
as $$
#variable_conflict use_column
begin
  return coalesce(
    (
      select true from faultline.groups g
      where g.queue = limited_queue.queue and g.ready and g.holding_per_weight = 0
        and g.virtual_time >= limited_queue.virtual_time
      order by g.virtual_time, g.group_key
      limit 1
    ),
    (
      select true from faultline.groups g
      where g.queue = limited_queue.queue and g.ready and g.holding_per_weight > 0
      order by g.holding_per_weight, g.virtual_time, g.group_key
      limit 1
    ),
    false
  );
end
$$;
