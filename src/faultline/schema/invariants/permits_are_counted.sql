-- What a shard and a group hold, less what was given back in events that are not applied yet, is what the rows of jobs say.
with shards as (
  select s.queue, s.shard, s.holding, q.shards as number
  from faultline.shards s
  join faultline.queues q on q.name = s.queue
),
permits as (
  select j.queue::text as queue, (j.counted >> 2) % q.shards as shard, j.group_key, j.counted
  from faultline.open_jobs j
  join faultline.queues q on q.name = j.queue
  where j.counted is not null
),
events as (
  select e.queue, e.freed, e.group_keys, e.freed_groups from faultline.group_events e
)
select k.queue, k.group_key, k.holding, k.counted
from (
  select
    s.queue, null as group_key,
    sum(s.holding) - coalesce((select sum(e.freed) from events e where e.queue = s.queue), 0) as holding,
    (select count(*) from permits p where p.queue = s.queue and p.counted & 1 > 0) as counted
  from shards s
  group by s.queue
  union all
  select
    coalesce(g.queue, p.queue, e.queue), coalesce(g.group_key, p.group_key, e.group_key),
    coalesce(g.holding, 0) - coalesce(e.freed, 0), coalesce(p.counted, 0)
  from faultline.groups g
  full join (
    select p.queue, p.group_key, count(*) as counted from permits p where p.counted & 2 > 0 group by p.queue, p.group_key
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
