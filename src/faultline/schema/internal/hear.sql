-- Add up what happened to the groups of a shard since this was last done: permits that are free, jobs that came in.
-- Before: the caller holds the shard's lock. After: its groups are up to date, and so is the row that is returned, which
-- the caller writes. At most `most` events: the next claim goes on.
--
-- An event is found by the number of its transaction: one that was open at the last look, or is newer. Unlike a bound that is
-- a time, this hides nothing that is committed late, and no dead row is read again.
create or replace function faultline.hear(
  inout shard faultline.shards, shards integer, due timestamptz, most integer default 5000
)
language plpgsql volatile
set plan_cache_mode = force_generic_plan
set jit = off
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  cluster constant text := faultline.cluster();
  second constant bigint := extract(epoch from due);
  each_group jsonb;
  each_cap integer;
  each_weight double precision;
  have_own boolean;
  heard record;
begin
  if shard.cluster <> cluster or shard.seen_to > pg_snapshot_xmax(pg_current_snapshot()) then
    shard.cluster := cluster;
    shard.seen_to := '0';
    shard.seen_open := '{}';
  end if;
  if not exists (
      select from faultline.group_events e where e.queue = shard.queue and e.shard = shard.shard and e.xid >= shard.seen_to
    ) and not exists (
      select from faultline.group_events e where e.queue = shard.queue and e.shard = shard.shard and e.xid = any (shard.seen_open)
    )
  then
    return;
  end if;
  each_group := coalesce((select l.effective from faultline.limits l where l.queue = shard.queue and l.group_key = '*'), '{}');
  -- Read from the fields once, and not for every group.
  each_cap := coalesce(faultline.cap_of(each_group), 2147483647);
  each_weight := faultline.weight_of(each_group);
  have_own := exists (select from faultline.limits l where l.queue = shard.queue and l.group_key not in ('', '*'));
  with now_open as materialized (select pg_current_snapshot() as snapshot),
  taken as (
    delete from faultline.group_events e
    where e.ctid = any (array(
      select o.ctid
      from faultline.group_events o
      where o.queue = shard.queue and o.shard = shard.shard and o.xid = any (shard.seen_open) and o.xid < shard.seen_to
      union all
      (
        select n.ctid
        from faultline.group_events n
        where n.queue = shard.queue and n.shard = shard.shard and n.xid >= shard.seen_to
        order by n.xid
        limit hear.most
      )
    ))
    returning e.group_key, e.freed, e.freed_group, e.priority, e.run_at, e.xid
  ),
  summed as materialized (
    select
      t.group_key, sum(t.freed)::integer as freed, sum(t.freed_group)::integer as freed_group,
      min(t.priority) as priority, min(t.run_at) as run_at, count(*) as events, max(t.xid) as last
    from taken t
    group by t.group_key
  ),
  -- Each is looked up by a query of its own, and changed by its ctid: a join could be planned, while the tables are empty, as
  -- a walk over all groups of the queue.
  known as materialized (
    select
      s.group_key, s.freed_group, s.priority, s.run_at, g.row_id, g.holding as was, h.holding,
      case when o.fields is null then each_weight else faultline.weight_of(o.fields) end as weight,
      h.holding < case when o.fields is null then each_cap else coalesce(faultline.cap_of(o.fields), 2147483647) end
        and g.not_before is null and (coalesce(g.more, false) or s.priority is not null) as ready
    from summed s
    left join lateral (
      select g.ctid as row_id, g.holding, g.more, g.not_before from faultline.groups g
      where g.group_key = s.group_key and g.queue = shard.queue
      order by g.epoch desc
      limit 1
    ) g on true
    left join lateral (
      select each_group || o.effective as fields
      from faultline.limits o
      where have_own and o.queue = shard.queue and o.group_key = s.group_key
      limit 1
    ) o on true
    cross join lateral (select greatest(0, coalesce(g.holding, 0) - s.freed_group) as holding) h
    where s.group_key is not null and faultline.shard_of(s.group_key, hear.shards) = shard.shard
  ),
  -- The number of shards was changed while it was written.
  passed_on as (
    insert into faultline.group_events (queue, shard, group_key, freed_group, priority, run_at)
    select
      shard.queue, faultline.shard_of(s.group_key, hear.shards), s.group_key, s.freed_group, s.priority, s.run_at
    from summed s
    where s.group_key is not null and faultline.shard_of(s.group_key, hear.shards) <> shard.shard
  ),
  changed as (
    update faultline.groups g
    set epoch = greatest(g.epoch, second),
        holding = k.holding,
        load = k.holding / k.weight,
        more = g.more or k.priority is not null,
        -- An empty group is given no turn: claims would look at it in vain.
        ready = k.ready,
        turn = case when k.ready and not g.ready then greatest(g.turn, shard.turn) else g.turn end,
        head_priority = case when (k.priority, k.run_at) < (g.head_priority, g.head_at) then k.priority else g.head_priority end,
        head_at = case when (k.priority, k.run_at) < (g.head_priority, g.head_at) then k.run_at else g.head_at end,
        head_id = case when (k.priority, k.run_at) <= (g.head_priority, g.head_at)
          then '00000000-0000-0000-0000-000000000000' else g.head_id end
    from known k
    where g.ctid = k.row_id
      -- A job that comes in behind the head of a group that is not empty changes nothing.
      and (k.freed_group <> 0 or not g.more or (k.priority, k.run_at) <= (g.head_priority, g.head_at))
  ),
  made as (
    insert into faultline.groups (
      group_key, queue, epoch, shard, holding, load, turn, more, ready, head_priority, head_at
    )
    select
      k.group_key, shard.queue, second, shard.shard, k.holding, k.holding / k.weight, shard.turn, k.priority is not null,
      k.ready, coalesce(k.priority, -32768), coalesce(k.run_at, '-infinity')
    from known k
    where k.row_id is null and (k.priority is not null or k.freed_group < 0)
  ),
  -- More was given back than was counted: somebody's SQL. One wrong number must not stop the whole queue.
  clamped as (
    insert into faultline.journal (at, event, detail)
    select
      faultline.clock(), 'permits_recounted',
      jsonb_build_object('queue', shard.queue, 'group', k.group_key, 'was', k.was - k.freed_group, 'is', 0)
    from known k
    where k.was < k.freed_group
  )
  select
    coalesce(sum(s.events), 0) as events, max(s.last) as last, coalesce(sum(s.freed), 0) as freed,
    (select n.snapshot from now_open n) as snapshot
  into heard
  from summed s;
  shard.holding := greatest(0, shard.holding - heard.freed);
  -- If there were too many: our own number may lie above others that are open and in no list.
  shard.seen_to := case
    when heard.events < hear.most then pg_snapshot_xmax(heard.snapshot)
    else least(heard.last, pg_snapshot_xmax(heard.snapshot))
  end;
  shard.seen_open := faultline.open_xids(heard.snapshot, shard.seen_to);
end
$$;
