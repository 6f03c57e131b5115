-- Groups whose jobs are gone, cancelled or expired with many others, are no longer ready: of the next thousand. A claim of one
-- job would look at them one by one. Before: the caller holds the queue's lock.
create or replace function faultline.clear_gone(limited_queue faultline.limited_queues, due timestamptz) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  update faultline.groups g
  set has_waiting = false, ready = false, changed_second = greatest(g.changed_second, extract(epoch from due)::bigint)
  where g.ctid = any (array(
    select o.row_id
    from (
      -- In the order in which pick_groups reads them.
      (
        select g.ctid as row_id, g.group_key, g.head_priority, g.head_at, g.head_id
        from faultline.groups g
        where g.queue = limited_queue.queue and g.ready and g.holding_per_weight = 0 and g.virtual_time >= limited_queue.virtual_time
        order by g.virtual_time, g.group_key
        limit 1000
      )
      union all
      (
        select g.ctid as row_id, g.group_key, g.head_priority, g.head_at, g.head_id
        from faultline.groups g
        where g.queue = limited_queue.queue and g.ready and g.holding_per_weight > 0
        order by g.holding_per_weight, g.virtual_time, g.group_key
        limit 1000
      )
    ) o
    where not exists (
      select from faultline.open_jobs r
      where r.queue = limited_queue.queue and r.group_key = o.group_key and r.in_group
        and (r.priority, r.group_at, r.id) > (o.head_priority, o.head_at, o.head_id)
        and (r.expires_at is null or r.expires_at > clear_gone.due or r.fencing_token > 0)
    )
  ));
end
$$;
