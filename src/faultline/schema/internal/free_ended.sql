-- Give back the permits of jobs that `complete` has removed: all at once. The trigger free_permits
-- does it for every other ending, with several statements for each job.
create or replace function faultline.free_ended(queues text[], marks smallint[], group_keys text[]) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  one record;
begin
  for one in
    with shards as materialized (
      select n.name, coalesce((select q.shards from faultline.queues q where q.name = n.name), 1)::integer as number
      from (select distinct unnest(free_ended.queues) as name) n
    ),
    ended as materialized (
      select
        e.queue, e.mark & 1 as freed, (e.mark & 2) >> 1 as freed_group, case when e.mark & 2 > 0 then e.group_key end as group_key,
        -- The shards that counted them: the queue's stands in the mark, the group's is that of the group.
        ((e.mark >> 2) % s.number)::smallint as at_shard,
        case when e.mark & 2 > 0 then faultline.shard_of(e.group_key, s.number) else (e.mark >> 2) % s.number end::smallint as at_home
      from unnest(free_ended.queues, free_ended.marks, free_ended.group_keys) as e (queue, mark, group_key)
      join shards s on s.name = e.queue
    )
    insert into faultline.group_events (queue, shard, freed, group_count, group_keys, freed_groups)
    select
      g.queue, g.at_home, sum(g.freed), count(g.group_key), array_agg(g.group_key) filter (where g.group_key is not null),
      array_agg(g.freed_group) filter (where g.group_key is not null)
    from (
      select
        e.queue, e.at_home, e.group_key, coalesce(sum(e.freed) filter (where e.at_home = e.at_shard), 0) as freed,
        sum(e.freed_group) as freed_group, (row_number() over () - 1) / 100 as part
      from ended e
      group by e.queue, e.at_home, e.group_key
    ) g
    group by g.queue, g.at_home, g.part
    union all
    select e.queue, e.at_shard, sum(e.freed), 0, null, null from ended e where e.at_home <> e.at_shard group by e.queue, e.at_shard
    returning queue, shard, group_keys
  loop
    -- Who claims itself wakes nobody.
    exit when current_setting('faultline.notify', true) = 'off';
    perform faultline.wake_for_free_permit(one.queue, one.shard, one.group_keys);
  end loop;
end
$$;
