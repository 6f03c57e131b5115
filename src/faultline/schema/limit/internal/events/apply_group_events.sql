-- Add up what happened to the groups of a queue since this was last done: permits that are free, jobs that came in.
-- Before: the caller holds the queue's lock. After: its groups are up to date, and so is the row that is returned, which
-- the caller writes. Permits of `most` groups or some more, and as many groups that jobs came into. `more`: there are others,
-- and the next call goes on.
--
-- An event is found by the number of its transaction: one that was open at the last look, or is newer. Unlike a bound that is
-- a time, this hides nothing that is committed late, and no dead row is read again.
create or replace function faultline.apply_group_events(
  inout limited_queue faultline.limited_queues, due timestamptz, most integer default 1000, out more boolean
)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  cluster constant text := faultline.cluster();
  -- Older than what has_unapplied_events sees: an event that it does not see is open here, or newer.
  before constant pg_snapshot := pg_current_snapshot();
  heard record;
begin
  more := false;
  if not faultline.has_unapplied_events(limited_queue) then
    if limited_queue.seen_to = '0' then
      -- There is nothing from the beginning on. Without this, every look would walk all that was applied before.
      limited_queue.cluster := cluster;
      limited_queue.seen_to := pg_snapshot_xmax(before);
      limited_queue.seen_open := faultline.open_xids(before, limited_queue.seen_to);
    end if;
    return;
  end if;
  if limited_queue.cluster <> cluster or limited_queue.seen_to > pg_snapshot_xmax(pg_current_snapshot()) then
    limited_queue.cluster := cluster;
    limited_queue.seen_to := '0';
    limited_queue.seen_open := '{}';
  end if;
  with now_open as materialized (select pg_current_snapshot() as snapshot),
  found as materialized (
    select n.ctid, n.xid, n.up_to - greatest(1, n.group_count) < apply_group_events.most as is_taken
    -- Each kind by itself: permits that are free now are not behind jobs that came in before.
    from (values (false), (true)) as k (arrival)
    cross join lateral (
      select n.ctid, n.xid, n.group_count, sum(greatest(1, n.group_count)) over (order by n.xid rows unbounded preceding) as up_to
      from (
        select e.ctid, e.xid, e.group_count
        from faultline.group_events e
        where e.queue = limited_queue.queue and e.arrival = k.arrival and e.xid >= limited_queue.seen_to
        order by e.xid
        -- One that is left says from where on.
        limit apply_group_events.most + 1
      ) n
    ) n
  ),
  taken as (
    delete from faultline.group_events e
    where e.ctid = any (array(
      select o.ctid
      from unnest(limited_queue.seen_open) as x (xid)
      cross join (values (false), (true)) as k (arrival)
      -- Each is looked up by itself: by the bound alone, every event that was ever applied would be read.
      cross join lateral (
        select e.ctid
        from faultline.group_events e
        where e.queue = limited_queue.queue and e.arrival = k.arrival and e.xid = x.xid
        offset 0
      ) o
      where x.xid < limited_queue.seen_to
      union all
      select f.ctid from found f where f.is_taken
    ))
    returning e.freed, e.group_keys, e.freed_groups, e.priorities, e.run_ats
  ),
  summed as (
    select p.group_key, coalesce(sum(p.freed_group), 0)::integer as freed_group, min(p.priority) as priority, min(p.run_at) as run_at
    from taken t
    cross join lateral unnest(t.group_keys, t.freed_groups, t.priorities, t.run_ats) as p (group_key, freed_group, priority, run_at)
    group by p.group_key
  ),
  counted as (
    select coalesce(sum(t.freed), 0) as freed from taken t
  )
  select
    (select min(f.xid) from found f where not f.is_taken) as left_from, c.freed, (select n.snapshot from now_open n) as snapshot,
    s.group_keys, s.freed_groups, s.priorities, s.run_ats
  into heard
  from counted c
  cross join (
    select
      array_agg(s.group_key) as group_keys, array_agg(s.freed_group) as freed_groups, array_agg(s.priority) as priorities,
      array_agg(s.run_at) as run_ats
    from summed s
  ) s;
  if heard.group_keys is not null then
    perform faultline.apply_events_to_groups(
      limited_queue, due, heard.group_keys, heard.freed_groups, heard.priorities, heard.run_ats
    );
    -- Groups that come in next stand behind them.
    limited_queue.arrival_virtual_time := limited_queue.arrival_virtual_time + cardinality(heard.group_keys) * 1e-9;
  end if;
  limited_queue.holding := greatest(0, limited_queue.holding - heard.freed);
  more := heard.left_from is not null;
  -- What is left may be our own, whose number may lie above others that are open and in no list.
  limited_queue.seen_to := least(heard.left_from, pg_snapshot_xmax(heard.snapshot));
  limited_queue.seen_open := faultline.open_xids(heard.snapshot, limited_queue.seen_to);
end
$$;
