-- What a queue and a group hold, less what was given back in events that are not applied yet, is what the rows of jobs say.
with permits as (
  select j.queue::text as queue, j.group_key, j.state = 'running' as runs from faultline.open_jobs j where j.has_permit
),
events as (
  select e.queue, e.freed, e.group_keys, e.freed_groups from faultline.group_events e
)
select k.queue, k.group_key, k.holding, k.counted
from (
  select
    l.queue, null as group_key,
    l.holding - coalesce((select sum(e.freed) from events e where e.queue = l.queue), 0) as holding,
    (select count(*) from permits p where p.queue = l.queue and p.runs) as counted
  from faultline.limited_queues l
  union all
  select
    coalesce(g.queue, p.queue, e.queue), coalesce(g.group_key, p.group_key, e.group_key),
    coalesce(g.holding, 0) - coalesce(e.freed, 0), coalesce(p.counted, 0)
  from faultline.groups g
  full join (
    select p.queue, p.group_key, count(*) as counted from permits p where p.group_key is not null group by p.queue, p.group_key
  ) p on p.queue = g.queue and p.group_key = g.group_key
  full join (
    select e.queue, p.group_key, sum(p.freed_group) as freed
    from events e
    cross join lateral unnest(e.group_keys, e.freed_groups) as p (group_key, freed_group)
    where p.freed_group is not null
    group by e.queue, p.group_key
  ) e on e.queue = coalesce(g.queue, p.queue) and e.group_key = coalesce(g.group_key, p.group_key)
) k
where k.holding <> k.counted;
