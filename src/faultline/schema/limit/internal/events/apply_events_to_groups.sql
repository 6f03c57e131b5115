-- What events said of groups, added up for each, becomes part of the groups. Only `apply_group_events` calls it.
create or replace function faultline.apply_events_to_groups(
  limited_queue faultline.limited_queues, due timestamptz,
  group_keys text[], freed_groups integer[], priorities smallint[], run_ats timestamptz[]
) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  second constant bigint := extract(epoch from due);
  each_group constant faultline.group_limits := faultline.each_group_limits(limited_queue.queue);
begin
  -- Each is looked up by a query of its own, and changed by its ctid: a join could be planned, while the tables are empty, as
  -- a walk over all groups of the queue.
  with known as materialized (
    select
      s.group_key, s.freed_group, j.priority, j.run_at, g.row_id, g.holding as was, h.holding,
      -- Behind all who came in before, and each behind the last.
      case
        when g.ready then limited_queue.virtual_time
        else limited_queue.arrival_virtual_time + row_number() over (order by s.run_at, s.group_key) * 1e-9
      end as arrival_virtual_time,
      l.weight, l.rate, t.tokens,
      h.holding < l.cap and g.not_before is null and (coalesce(g.has_waiting, false) or j.priority is not null) as may_start
    from unnest(
      apply_events_to_groups.group_keys, apply_events_to_groups.freed_groups, apply_events_to_groups.priorities,
      apply_events_to_groups.run_ats
    ) as s (group_key, freed_group, priority, run_at)
    left join lateral (
      select g.ctid as row_id, g.* from faultline.groups g
      where g.group_key = s.group_key and g.queue = limited_queue.queue
      order by g.changed_second desc
      limit 1
    ) g on true
    cross join lateral faultline.limits_of_group(limited_queue.queue, s.group_key, each_group) l
    cross join lateral (
      select faultline.refilled(g.tokens, g.refilled_at, l.rate, l.burst, apply_events_to_groups.due) as tokens offset 0
    ) t
    cross join lateral (select greatest(0, coalesce(g.holding, 0) - s.freed_group) as holding) h
    -- What came in may be gone: cancelled or expired with many others. A claim would look at each of their groups for nothing.
    left join lateral (
      select s.priority, s.run_at
      where s.priority is not null and exists (
        select from faultline.open_jobs r
        where r.queue = limited_queue.queue and r.group_key = s.group_key and r.in_group
          and (r.priority, r.group_at) >= (s.priority, s.run_at)
          and (r.expires_at is null or r.expires_at > apply_events_to_groups.due or r.fencing_token > 0)
      )
    ) j on true
  ),
  changed as (
    update faultline.groups g
    set changed_second = greatest(g.changed_second, second),
        holding = k.holding,
        holding_per_weight = k.holding / k.weight,
        has_waiting = g.has_waiting or k.priority is not null,
        -- An empty group is given no virtual time: claims would look at it for nothing.
        ready = k.may_start and (k.tokens < 1) is not true,
        -- A group without a token is looked at when it has one, and not before: claims would look at it for nothing.
        not_before = case
          when k.may_start and k.tokens < 1 then due + make_interval(secs => (1 - k.tokens) / k.rate)
          else g.not_before
        end,
        virtual_time = case when k.may_start then greatest(g.virtual_time, k.arrival_virtual_time) else g.virtual_time end,
        head_priority = case when (k.priority, k.run_at) < (g.head_priority, g.head_at) then k.priority else g.head_priority end,
        head_at = case when (k.priority, k.run_at) < (g.head_priority, g.head_at) then k.run_at else g.head_at end,
        head_id = case when (k.priority, k.run_at) <= (g.head_priority, g.head_at)
          then '00000000-0000-0000-0000-000000000000' else g.head_id end
    from known k
    where g.ctid = k.row_id
      -- A job that comes in behind the head of a group that is not empty changes nothing.
      and (k.freed_group <> 0 or not g.has_waiting or (k.priority, k.run_at) <= (g.head_priority, g.head_at))
  ),
  made as (
    insert into faultline.groups (
      group_key, queue, changed_second, holding, holding_per_weight, virtual_time, has_waiting, ready, head_priority, head_at
    )
    select
      k.group_key, limited_queue.queue, second, k.holding, k.holding / k.weight, k.arrival_virtual_time, k.priority is not null,
      k.may_start, coalesce(k.priority, -32768), coalesce(k.run_at, '-infinity')
    from known k
    where k.row_id is null and (k.priority is not null or k.freed_group < 0)
  )
  -- More was freed than was counted, by SQL that is not ours. One wrong number must not stop the whole queue.
  insert into faultline.journal (at, event, detail)
  select
    faultline.clock(), 'permits_recounted',
    jsonb_build_object('queue', limited_queue.queue, 'group', k.group_key, 'was', k.was - k.freed_group, 'is', 0)
  from known k
  where k.was < k.freed_group;
end
$$;
