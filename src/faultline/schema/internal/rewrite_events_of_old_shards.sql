-- Write events of shards from `first` on anew, for the shards that there are: as our own, so that every shard applies them.
-- And jobs that kept a permit are found at the shard of their group: whoever put one back may not have known of a change
-- yet. Before: the caller holds all shards.
create or replace function faultline.rewrite_events_of_old_shards(queue text, number integer, first integer) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  strays record;
begin
  with gone as (
    delete from faultline.group_events e where e.queue = rewrite_events_of_old_shards.queue and e.shard >= rewrite_events_of_old_shards.first
    returning e.*
  ),
  freed as (
    insert into faultline.group_events (queue, shard, freed)
    select g.queue, g.shard % rewrite_events_of_old_shards.number, g.freed from gone g where g.freed <> 0
  )
  select
    array_agg(p.group_key) as group_keys, array_agg(p.freed_group) as freed_groups, array_agg(p.priority) as priorities,
    array_agg(p.run_at) as run_ats
  into strays
  from gone g
  cross join lateral unnest(g.group_keys, g.freed_groups, g.priorities, g.run_ats) as p (group_key, freed_group, priority, run_at);
  perform faultline.insert_group_events(
    rewrite_events_of_old_shards.queue, rewrite_events_of_old_shards.number, strays.group_keys, strays.freed_groups, strays.priorities, strays.run_ats
  );
  update faultline.open_jobs j
  set counted = 2 | (faultline.shard_of(j.group_key, rewrite_events_of_old_shards.number) << 2)
  -- A submitter may have locked one, for as long as its transaction lasts. All claims would wait for it: `maintain_limits`
  -- looks again.
  where j.ctid = any (array(
    select r.ctid
    from faultline.open_jobs r
    where r.queue = rewrite_events_of_old_shards.queue
      and r.state = 'queued' and r.group_key is not null and r.in_group is null and r.counted is not null
      and r.counted <> 2 | (faultline.shard_of(r.group_key, rewrite_events_of_old_shards.number) << 2)
    for update skip locked
  ));
end
$$;
