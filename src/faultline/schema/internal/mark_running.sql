-- Count the jobs of a queue that run without a permit: they were claimed before it had limits, or in that moment. Those whose
-- rows somebody has locked are counted the next time: `fold` looks once a minute. Before: the caller holds all its shards.
create or replace function faultline.mark_running(queue text) returns integer
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  marked integer;
begin
  with found as materialized (
    select j.ctid
    from faultline.open_jobs j
    where j.state = 'running' and j.lease_expires_at <= 'infinity' and j.queue = mark_running.queue and j.counted is null
    for update skip locked
  ),
  done as (
    update faultline.open_jobs j
    set counted = case when j.group_key is null then 1 else 3 end | (s.shard << 2)
    from found f
    cross join faultline.queues q
    cross join lateral (select 0 as shard) s
    where j.ctid = f.ctid and q.name = mark_running.queue
    returning j.group_key, j.counted
  ),
  -- As events that take permits: the next claim adds them up.
  logged as (
    insert into faultline.group_events (queue, shard, group_key, freed, freed_group)
    select
      mark_running.queue, faultline.shard_of(d.group_key, q.shards), d.group_key,
      0, -count(*)
    from done d
    join faultline.queues q on q.name = mark_running.queue
    where d.group_key is not null
    group by d.group_key, q.shards
    union all
    select mark_running.queue, 0, null, -count(*), 0 from done d having count(*) > 0
  )
  select count(*) into marked from done;
  return marked;
end
$$;
