-- Group events: that jobs came and permits were freed, told by inserts and applied by claims.

-- Tell the claims of their queues that these new jobs wait in their groups.
create or replace function faultline.insert_arrival_events(job_ids uuid[]) returns void
language plpgsql volatile
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
  one record;
begin
  for one in
    select g.queue, array_agg(g.group_key) as group_keys, array_agg(g.priority) as priorities, array_agg(g.run_at) as run_ats
    from (
      select k.queue, k.group_key, min(k.priority) as priority, min(k.group_at) as run_at
      -- By id only, as in wake_for.
      from (
        select j.queue, j.group_key, j.in_group, j.priority, j.group_at
        from faultline.open_jobs j
        where j.id = any (insert_arrival_events.job_ids)
        offset 0
      ) k
      where k.in_group
      group by k.queue, k.group_key
    ) g
    group by g.queue
  loop
    perform faultline.insert_group_events(one.queue, one.group_keys, null, one.priorities, one.run_ats);
  end loop;
end
$$;

-- Note for the claims of a queue what happened to its groups: permits that are free, the first job that came into each.
-- A hundred to an event: a claim applies some, and leaves the rest to the next.
create or replace function faultline.insert_group_events(
  queue text, group_keys text[], freed_groups integer[], priorities smallint[], run_ats timestamptz[]
) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  insert into faultline.group_events (queue, arrival, group_count, group_keys, freed_groups, priorities, run_ats)
  select
    insert_group_events.queue, coalesce(bool_and(g.freed_group = 0), true), count(*), array_agg(g.group_key),
    array_agg(g.freed_group), array_agg(g.priority), array_agg(g.run_at)
  from (
    select p.*, (row_number() over () - 1) / 100 as part
    from unnest(
      insert_group_events.group_keys, insert_group_events.freed_groups, insert_group_events.priorities,
      insert_group_events.run_ats
    ) as p (group_key, freed_group, priority, run_at)
  ) g
  group by g.part;
end
$$;

-- Give back the permits of a job that no longer runs, however it ended: a trigger, so that no verb can forget it. Only
-- `complete` does it for all its jobs at once: see free_ended.
-- In a group that keeps its order, a job that goes back to the queue keeps its group's permit until it has ended for good.
-- Not if it waits for another job of the group, as one may that called it before the group kept its order: both would wait.
create or replace function faultline.free_permits() returns trigger
language plpgsql
as $$
declare
  -- Only a job that runs holds one of the queue.
  freed constant integer := (old.state = 'running')::integer;
  freed_group boolean := old.group_key is not null;
begin
  if tg_op = 'UPDATE' then
    new.has_permit := null;
    if new.state = 'queued' and new.group_key = old.group_key
      and (faultline.group_limit(old.queue, old.group_key) ->> 'ordered')::boolean
      and not (new.suspended is true and faultline.waits_for_group(old.id, old.queue, old.group_key))
    then
      new.has_permit := true;
      freed_group := false;
    end if;
  end if;
  if freed > 0 or freed_group then
    insert into faultline.group_events (queue, freed, group_count, group_keys, freed_groups)
    select
      old.queue, freed, freed_group::integer, case when freed_group then array[old.group_key] end,
      case when freed_group then array[1] end;
    perform faultline.wake_for_free_permit(old.queue, case when freed_group then array[old.group_key] end);
  end if;
  return new;
end
$$;

-- Give back the permits of jobs that `complete` has removed: all at once. The trigger free_permits does it for every other
-- ending, with several statements for each job. Without `wakes`, no worker is woken for them: the caller claims next. The insert
-- is whole, however soon its loop ends.
create or replace function faultline.free_ended(queues text[], group_keys text[], wakes boolean) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  one record;
begin
  for one in
    insert into faultline.group_events (queue, freed, group_count, group_keys, freed_groups)
    select
      g.queue, sum(g.jobs), count(g.group_key), array_agg(g.group_key) filter (where g.group_key is not null),
      array_agg(g.jobs) filter (where g.group_key is not null)
    from (
      select e.queue, e.group_key, count(*)::integer as jobs, (row_number() over () - 1) / 100 as part
      from unnest(free_ended.queues, free_ended.group_keys) as e (queue, group_key)
      group by e.queue, e.group_key
    ) g
    group by g.queue, g.part
    returning queue, group_keys
  loop
    exit when not wakes;
    perform faultline.wake_for_free_permit(one.queue, one.group_keys);
  end loop;
end
$$;

-- A job that was cancelled while it waited in its group has its true time again.
create or replace function faultline.leave_group() returns trigger
language plpgsql
as $$
begin
  new.in_group := null;
  new.next_run_at := old.group_at;
  new.group_at := null;
  return new;
end
$$;

-- Whether a job waits for an open job of this group, by what it or others that it waits for have called.
create or replace function faultline.waits_for_group(job_id uuid, queue text, group_key text) returns boolean
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  return exists (
    with recursive below as (
      select waits_for_group.job_id as id
      union
      select e.job_id
      from below b
      cross join lateral (select c.id from faultline.calls c where c.job_id = b.id and c.ended_at is null offset 0) c
      cross join lateral (select e.job_id from faultline.edges e where e.call_id = c.id offset 0) e
    )
    select
    from below b
    cross join lateral (select j.state, j.queue, j.group_key from faultline.open_jobs j where j.id = b.id offset 0) o
    where b.id <> waits_for_group.job_id
      and o.state in ('queued', 'running')
      and o.queue = waits_for_group.queue
      and o.group_key = waits_for_group.group_key
  );
end
$$;

-- The transactions of a snapshot that may still write here, and the caller's own, which may write more.
-- Where many are open, those that are known to be of other databases are left out: they cannot write here.
create or replace function faultline.open_xids(snapshot pg_snapshot, below xid8) returns xid8[]
language plpgsql volatile
as $$
declare
  found xid8[] := array(select x.xid from pg_snapshot_xip(snapshot) as x (xid) where x.xid < open_xids.below);
begin
  if cardinality(found) > 50 then
    found := array(
      select f.xid
      from unnest(found) as f (xid)
      where f.xid::xid::text not in (
        select a.backend_xid::text from pg_stat_activity a
        where a.backend_xid is not null and a.datname <> current_database()
        union all
        select p.transaction::text from pg_prepared_xacts p where p.database <> current_database()
      )
    );
  end if;
  return found || pg_current_xact_id();
end
$$;

-- Whether a queue has events that are not applied yet. By the numbers of transactions, as `apply_group_events` looks:
-- the entries of events that were applied stay until they are vacuumed, and would all be walked.
create or replace function faultline.has_unapplied_events(limited_queue faultline.limited_queues) returns boolean
language plpgsql stable
as $$
#variable_conflict use_column
declare
  -- The numbers of another cluster say nothing.
  bound constant xid8 := case
    when limited_queue.cluster = faultline.cluster() and limited_queue.seen_to <= pg_snapshot_xmax(pg_current_snapshot())
      then limited_queue.seen_to
    else '0'
  end;
begin
  return exists (
    select from faultline.group_events e where e.queue = limited_queue.queue and not e.arrival and e.xid >= bound
  ) or exists (
    select from faultline.group_events e where e.queue = limited_queue.queue and e.arrival and e.xid >= bound
  ) or exists (
    select
    from unnest(limited_queue.seen_open) as x (xid)
    cross join (values (false), (true)) as k (arrival)
    -- Each is looked up by itself: a list may be compared with every entry.
    cross join lateral (
      select from faultline.group_events e
      where e.queue = limited_queue.queue and e.arrival = k.arrival and e.xid = x.xid
      limit 1
    ) e
  );
end
$$;

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

-- What events said of groups, added up for each, becomes part of the groups. Only `apply_group_events` calls it.
create or replace function faultline.apply_events_to_groups(
  limited_queue faultline.limited_queues, due timestamptz,
  group_keys text[], freed_groups integer[], priorities smallint[], run_ats timestamptz[]
) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  second constant bigint := extract(epoch from due);
  each_group constant faultline.group_limits := faultline.each_group_limits(limited_queue.queue);
begin
  -- Each is looked up by a query of its own, and changed by its ctid: a join could be planned, while the tables are empty, as
  -- a walk over all groups of the queue.
  with known as materialized (
    select
      s.group_key, s.freed_group, j.priority, j.run_at, g.row_id, g.holding as was, h.holding,
      -- Behind all who came in before, and each behind the last.
      case
        when g.ready then limited_queue.virtual_time
        else limited_queue.arrival_virtual_time + row_number() over (order by s.run_at, s.group_key) * 1e-9
      end as arrival_virtual_time,
      l.weight, l.rate, t.tokens,
      h.holding < l.cap and g.not_before is null and (coalesce(g.has_waiting, false) or j.priority is not null) as may_start
    from unnest(
      apply_events_to_groups.group_keys, apply_events_to_groups.freed_groups, apply_events_to_groups.priorities,
      apply_events_to_groups.run_ats
    ) as s (group_key, freed_group, priority, run_at)
    left join lateral (
      select g.ctid as row_id, g.* from faultline.groups g
      where g.group_key = s.group_key and g.queue = limited_queue.queue
      order by g.changed_second desc
      limit 1
    ) g on true
    cross join lateral faultline.limits_of_group(limited_queue.queue, s.group_key, each_group) l
    cross join lateral (
      select faultline.refilled(g.tokens, g.refilled_at, l.rate, l.burst, apply_events_to_groups.due) as tokens offset 0
    ) t
    cross join lateral (select greatest(0, coalesce(g.holding, 0) - s.freed_group) as holding) h
    -- What came in may be gone: cancelled or expired with many others. A claim would look at each of their groups for nothing.
    left join lateral (
      select s.priority, s.run_at
      where s.priority is not null and exists (
        select from faultline.open_jobs r
        where r.queue = limited_queue.queue and r.group_key = s.group_key and r.in_group
          and (r.priority, r.group_at) >= (s.priority, s.run_at)
          and (r.expires_at is null or r.expires_at > apply_events_to_groups.due or r.fencing_token > 0)
      )
    ) j on true
  ),
  changed as (
    update faultline.groups g
    set changed_second = greatest(g.changed_second, second),
        holding = k.holding,
        holding_per_weight = k.holding / k.weight,
        has_waiting = g.has_waiting or k.priority is not null,
        -- An empty group is given no virtual time: claims would look at it for nothing.
        ready = k.may_start and (k.tokens < 1) is not true,
        -- A group without a token is looked at when it has one, and not before: claims would look at it for nothing.
        not_before = case
          when k.may_start and k.tokens < 1 then due + make_interval(secs => (1 - k.tokens) / k.rate)
          else g.not_before
        end,
        virtual_time = case when k.may_start then greatest(g.virtual_time, k.arrival_virtual_time) else g.virtual_time end,
        head_priority = case when (k.priority, k.run_at) < (g.head_priority, g.head_at) then k.priority else g.head_priority end,
        head_at = case when (k.priority, k.run_at) < (g.head_priority, g.head_at) then k.run_at else g.head_at end,
        head_id = case when (k.priority, k.run_at) <= (g.head_priority, g.head_at)
          then '00000000-0000-0000-0000-000000000000' else g.head_id end
    from known k
    where g.ctid = k.row_id
      -- A job that comes in behind the head of a group that is not empty changes nothing.
      and (k.freed_group <> 0 or not g.has_waiting or (k.priority, k.run_at) <= (g.head_priority, g.head_at))
  ),
  made as (
    insert into faultline.groups (
      group_key, queue, changed_second, holding, holding_per_weight, virtual_time, has_waiting, ready, head_priority, head_at
    )
    select
      k.group_key, limited_queue.queue, second, k.holding, k.holding / k.weight, k.arrival_virtual_time, k.priority is not null,
      k.may_start, coalesce(k.priority, -32768), coalesce(k.run_at, '-infinity')
    from known k
    where k.row_id is null and (k.priority is not null or k.freed_group < 0)
  )
  -- More was freed than was counted, by SQL that is not ours. One wrong number must not stop the whole queue.
  insert into faultline.journal (at, event, detail)
  select
    faultline.clock(), 'permits_recounted',
    jsonb_build_object('queue', limited_queue.queue, 'group', k.group_key, 'was', k.was - k.freed_group, 'is', 0)
  from known k
  where k.was < k.freed_group;
end
$$;
