-- Add up what happened to the groups of a shard since this was last done: permits that are free, jobs that came in.
-- Before: the caller holds the shard's lock. After: its groups are up to date, and so is the row that is returned, which
-- the caller writes. Of `most` groups or some more. `more`: there may be others, and the next call goes on.
--
-- An event is found by the number of its transaction: one that was open at the last look, or is newer. Unlike a bound that is
-- a time, this hides nothing that is committed late, and no dead row is read again.
create or replace function faultline.hear(
  inout shard faultline.shards, shards integer, due timestamptz, most integer default 1000, out more boolean
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
  more := false;
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
        from (
          select n.ctid, n.group_count, sum(greatest(1, n.group_count)) over (order by n.xid rows unbounded preceding) as up_to
          from (
            select n.ctid, n.xid, n.group_count
            from faultline.group_events n
            where n.queue = shard.queue and n.shard = shard.shard and n.xid >= shard.seen_to
            order by n.xid
            limit hear.most
          ) n
        ) n
        where n.up_to - greatest(1, n.group_count) < hear.most
      )
    ))
    returning e.freed, e.group_count, e.group_keys, e.freed_groups, e.priorities, e.run_ats, e.xid
  ),
  summed as (
    select p.group_key, coalesce(sum(p.freed_group), 0)::integer as freed_group, min(p.priority) as priority, min(p.run_at) as run_at
    from taken t
    cross join lateral unnest(t.group_keys, t.freed_groups, t.priorities, t.run_ats) as p (group_key, freed_group, priority, run_at)
    group by p.group_key
  ),
  counted as (
    select coalesce(sum(greatest(1, t.group_count)), 0) as events, max(t.xid) as last, coalesce(sum(t.freed), 0) as freed from taken t
  )
  select
    c.events, c.last, c.freed, (select n.snapshot from now_open n) as snapshot, s.group_keys, s.freed_groups, s.priorities, s.run_ats
  into heard
  from counted c
  cross join (
    select
      array_agg(s.group_key) as group_keys, array_agg(s.freed_group) as freed_groups, array_agg(s.priority) as priorities,
      array_agg(s.run_at) as run_ats
    from summed s
  ) s;
  if heard.group_keys is not null then
    perform faultline.hear_groups(shard, hear.shards, due, heard.group_keys, heard.freed_groups, heard.priorities, heard.run_ats);
  end if;
  shard.holding := greatest(0, shard.holding - heard.freed);
  more := heard.events >= hear.most;
  -- If there were too many: our own number may lie above others that are open and in no list.
  shard.seen_to := case
    when more then least(heard.last, pg_snapshot_xmax(heard.snapshot)) else pg_snapshot_xmax(heard.snapshot)
  end;
  shard.seen_open := faultline.open_xids(heard.snapshot, shard.seen_to);
end
$$;
