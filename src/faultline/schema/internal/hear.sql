-- Add up what happened to the groups of a shard since this was last done: permits that are free, jobs that came in.
-- Before: the caller holds the shard's lock. After: its groups are up to date, and so is the row that is returned, which
-- the caller writes. At most `most` events: the next claim goes on.
--
-- An event is found by the number of its transaction: one that was open at the last look, or is newer. Unlike a bound that is
-- a time, this hides nothing that is committed late, and no dead row is read again.
create or replace function faultline.hear(
  inout shard faultline.shards, shards integer, due timestamptz, most integer default 2000
)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  cluster constant text := faultline.cluster();
  -- Older than what has_events sees: an event that it does not see is open here, or newer.
  before constant pg_snapshot := pg_current_snapshot();
  heard record;
begin
  if not faultline.has_events(shard) then
    if shard.seen_to = '0' then
      -- There is nothing from the beginning on. Without this, every look would walk all that was heard before.
      shard.cluster := cluster;
      shard.seen_to := pg_snapshot_xmax(before);
      shard.seen_open := faultline.open_xids(before, shard.seen_to);
    end if;
    return;
  end if;
  if shard.cluster <> cluster or shard.seen_to > pg_snapshot_xmax(pg_current_snapshot()) then
    shard.cluster := cluster;
    shard.seen_to := '0';
    shard.seen_open := '{}';
  end if;
  with now_open as materialized (select pg_current_snapshot() as snapshot),
  taken as (
    delete from faultline.group_events e
    where e.ctid = any (array(
      select o.ctid
      from unnest(shard.seen_open) as x (xid)
      -- Each is looked up by itself: by the bound alone, every event that anybody ever heard would be read.
      cross join lateral (
        select e.ctid
        from faultline.group_events e
        where e.queue = shard.queue and e.shard = shard.shard and e.xid = x.xid
        offset 0
      ) o
      where x.xid < shard.seen_to
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
  summed as (
    select
      t.group_key, sum(t.freed) as freed, sum(t.freed_group)::integer as freed_group,
      min(t.priority) as priority, min(t.run_at) as run_at, count(*) as events, max(t.xid) as last
    from taken t
    group by t.group_key
  )
  select
    coalesce(sum(s.events), 0) as events, max(s.last) as last, coalesce(sum(s.freed), 0) as freed,
    (select n.snapshot from now_open n) as snapshot,
    array_agg(s.group_key) filter (where s.group_key is not null) as group_keys,
    array_agg(s.freed_group) filter (where s.group_key is not null) as freed_groups,
    array_agg(s.priority) filter (where s.group_key is not null) as priorities,
    array_agg(s.run_at) filter (where s.group_key is not null) as run_ats
  into heard
  from summed s;
  if heard.group_keys is not null then
    perform faultline.hear_groups(shard, hear.shards, due, heard.group_keys, heard.freed_groups, heard.priorities, heard.run_ats);
  end if;
  shard.holding := greatest(0, shard.holding - heard.freed);
  -- If there were too many: our own number may lie above others that are open and in no list.
  shard.seen_to := case
    when heard.events < hear.most then pg_snapshot_xmax(heard.snapshot)
    else least(heard.last, pg_snapshot_xmax(heard.snapshot))
  end;
  shard.seen_open := faultline.open_xids(heard.snapshot, shard.seen_to);
end
$$;
