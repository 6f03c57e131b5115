-- The groups of a queue that may be granted something, at most 1,000: those that hold least for their weight come first, then
-- those with the least virtual time. Each with its limits, and with `room`: how many of its jobs may start now.
create or replace function faultline.list_ready_groups(
  limited_queue faultline.limited_queues, due timestamptz, most integer
) returns faultline.ready_group[]
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  each_group constant jsonb := coalesce(
    (select l.effective from faultline.limits l where l.queue = limited_queue.queue and l.group_key = '*'), '{}'
  );
  -- Read from the fields once, and not for every group.
  each_cap constant integer := coalesce(faultline.cap_of(each_group), 2147483647);
  each_rate constant double precision := faultline.rate_of(each_group);
  each_burst constant double precision := (each_group ->> 'burst')::double precision;
  each_weight constant double precision := faultline.weight_of(each_group);
  have_own constant boolean := exists (
    select from faultline.limits l where l.queue = limited_queue.queue and l.group_key not in ('', '*')
  );
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
    left join lateral (
      select each_group || o.effective as fields
      from faultline.limits o
      where have_own and o.queue = limited_queue.queue and o.group_key = g.group_key
      limit 1
    ) o on true
    cross join lateral (
      select
        case when o.fields is null then each_cap else coalesce(faultline.cap_of(o.fields), 2147483647) end as cap,
        case when o.fields is null then each_rate else faultline.rate_of(o.fields) end as rate,
        case when o.fields is null then each_burst else (o.fields ->> 'burst')::double precision end as burst,
        case when o.fields is null then each_weight else faultline.weight_of(o.fields) end as weight
      offset 0
    ) l
    cross join lateral (
      select faultline.refilled(g.tokens, g.refilled_at, l.rate, l.burst, list_ready_groups.due) as tokens offset 0
    ) t
  );
end
$$;
