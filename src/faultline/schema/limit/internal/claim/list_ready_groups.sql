-- The groups of a queue that may be granted something, at most 1,000: those that hold least for their weight come first, then
-- those with the least virtual time. Each with its limits, and with `room`: how many of its jobs may start now.
create or replace function faultline.list_ready_groups(
  limited_queue faultline.limited_queues, due timestamptz, most integer
) returns faultline.ready_group[]
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  each_group constant faultline.group_limits := faultline.each_group_limits(limited_queue.queue);
begin
  return array(
    select row(
      g.row_id, g.group_key, g.holding, g.virtual_time, g.refilled_at, g.head_priority, g.head_at, g.head_id,
      l.cap, l.rate, l.weight, t.tokens,
      greatest(0, least(l.cap - g.holding, coalesce(floor(t.tokens), most), most))::integer
    )::faultline.ready_group
    from (
      -- Those that hold nothing are read from the queue's virtual time on: none of them stands before it but dead entries,
      -- which vacuum cannot remove while a session holds an old snapshot.
      (
        select g.ctid as row_id, g.* from faultline.groups g
        where g.queue = limited_queue.queue and g.ready and g.holding_per_weight = 0 and g.virtual_time >= limited_queue.virtual_time
        order by g.virtual_time, g.group_key
        limit least(most, 1000)
      )
      union all
      (
        select g.ctid as row_id, g.* from faultline.groups g
        where g.queue = limited_queue.queue and g.ready and g.holding_per_weight > 0
        order by g.holding_per_weight, g.virtual_time, g.group_key
        limit least(most, 1000)
      )
      limit least(most, 1000)
    ) g
    cross join lateral faultline.limits_of_group(limited_queue.queue, g.group_key, each_group) l
    cross join lateral (
      select faultline.refilled(g.tokens, g.refilled_at, l.rate, l.burst, list_ready_groups.due) as tokens offset 0
    ) t
  );
end
$$;
