-- Count the permits of a queue: from the jobs that hold them, and from those that were freed by events which are not applied
-- yet. One statement, so one snapshot. Before: the caller holds the queue's lock. Returns how many counts were wrong.
create or replace function faultline.recount_queue(queue text) returns integer
language plpgsql volatile
set plan_cache_mode = force_custom_plan
set jit = off
as $$
#variable_conflict use_column
declare
  second constant bigint := extract(epoch from faultline.clock());
  wrong integer;
begin
  perform faultline.permit_running_jobs(recount_queue.queue);
  with permits as materialized (
    select j.group_key, true as runs
    from faultline.open_jobs j
    where j.state = 'running' and j.lease_expires_at <= 'infinity' and j.queue = recount_queue.queue and j.has_permit
    union all
    -- Kept while its job waits for another attempt.
    select j.group_key, false
    from faultline.open_jobs j
    where j.queue = recount_queue.queue
      and j.state = 'queued' and j.group_key is not null and j.in_group is null and j.has_permit
  ),
  events as materialized (
    select e.freed, e.group_keys, e.freed_groups from faultline.group_events e where e.queue = recount_queue.queue
  ),
  of_queue as (
    update faultline.limited_queues l
    set holding = n.holding
    from (
      select (select count(*) from permits p where p.runs) + coalesce((select sum(e.freed) from events e), 0) as holding
    ) n
    where l.queue = recount_queue.queue and l.holding <> n.holding
    returning null::text as group_key, n.holding
  ),
  of_groups as materialized (
    select k.group_key, sum(k.holding)::integer as holding
    from (
      select p.group_key, 1 as holding from permits p where p.group_key is not null
      union all
      select p.group_key, p.freed_group
      from events e
      cross join lateral unnest(e.group_keys, e.freed_groups) as p (group_key, freed_group)
      where p.freed_group <> 0
      union all
      select g.group_key, 0 from faultline.groups g where g.queue = recount_queue.queue
    ) k
    group by k.group_key
  ),
  changed as (
    update faultline.groups g
    set holding = greatest(0, o.holding),
        holding_per_weight = greatest(0, o.holding) / faultline.weight_of(faultline.group_limit(g.queue, g.group_key)),
        ready = g.has_waiting and g.not_before is null,
        virtual_time = greatest(
          g.virtual_time, (select l.arrival_virtual_time from faultline.limited_queues l where l.queue = recount_queue.queue)
        )
    from of_groups o
    where g.queue = recount_queue.queue and g.group_key = o.group_key and g.holding <> greatest(0, o.holding)
    returning g.group_key, g.holding
  ),
  made as (
    insert into faultline.groups (group_key, queue, changed_second, holding, holding_per_weight)
    select o.group_key, recount_queue.queue, second, o.holding, o.holding
    from of_groups o
    where o.holding > 0 and not exists (
      select from faultline.groups g where g.queue = recount_queue.queue and g.group_key = o.group_key
    )
    returning group_key, holding
  ),
  all_wrong as materialized (
    select q.group_key, q.holding from of_queue q
    union all
    select c.group_key, c.holding from changed c
    union all
    select m.group_key, m.holding from made m
  ),
  logged as (
    insert into faultline.journal (at, event, detail)
    select
      faultline.clock(), 'permits_recounted',
      jsonb_build_object('queue', recount_queue.queue, 'group', w.group_key, 'is', w.holding)
    from all_wrong w
    limit 100
  )
  select count(*) into wrong from all_wrong;
  return wrong;
end
$$;
