-- Which jobs a claim of a queue with limits gets.

-- The next jobs of a queue with limits, up to `room`: their ctids, locked. Before: the caller holds the queue's lock. After:
-- groups have their new virtual times, tokens and permits.
-- `ready`, `kept`: see apply_until_room. `divides`: each kind of jobs gets a part at most, and `divided` says that it was so.
create or replace function faultline.pick_jobs(
  inout limited_queue faultline.limited_queues, due timestamptz, room integer, ready boolean, kept boolean, divides boolean,
  out ctids tid[], out divided boolean
)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  -- Jobs of no group get half of the room where groups wait too.
  mixed constant boolean := divides and (ready or kept) and faultline.has_due_ungrouped(limited_queue.queue, due);
  part record;
begin
  divided := mixed or divides and ready and kept;
  ctids := '{}';
  if kept then
    -- Heads of groups that keep their order get half of it where others wait: they may come again and again.
    ctids := faultline.pick_permit_holders(
      limited_queue, due, case when divided then (room + (random() < 0.5)::integer) / 2 else room end
    );
  end if;
  if ready then
    part := faultline.pick_groups(
      limited_queue, due,
      case when mixed then (room - cardinality(ctids) + (random() < 0.5)::integer) / 2 else room - cardinality(ctids) end
    );
    limited_queue := part.limited_queue;
    ctids := ctids || part.ctids;
  end if;
  if mixed or not (ready or kept) then
    ctids := ctids || faultline.pick_ungrouped(limited_queue.queue, due, room - cardinality(ctids));
  end if;
end
$$;

-- Due jobs that kept their group's permit while they waited for another attempt: they come first, since their whole group
-- waits for them. Returns their ctids, locked. Each pays a token of its group; one that has none is due when there is one, or
-- when the rate is raised: see recheck_groups.
create or replace function faultline.pick_permit_holders(
  limited_queue faultline.limited_queues, due timestamptz, most integer
) returns tid[]
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  ctids tid[] := '{}';
  group_keys text[] := '{}';
  looks integer;
  part record;
begin
  -- Where some of the first may not start, 500 more are looked at, and those that may not are put off together. If a claim put
  -- off only as many as it may grant, thousands of them would keep claims busy for seconds.
  foreach looks in array array[pick_permit_holders.most, 500] loop
    with kept as materialized (
      select r.ctid, r.group_key, r.next_run_at, r.id
      from faultline.open_jobs r
      where r.queue = limited_queue.queue
        and r.state = 'queued' and r.group_key is not null and r.in_group is null
        and r.has_permit
        and r.next_run_at <= pick_permit_holders.due
        and r.ctid <> all (ctids)
      order by r.next_run_at, r.id
      limit looks
      for update skip locked
    ),
    judged as materialized (
      select
        k.ctid, k.group_key, k.next_run_at, k.id, g.row_id, l.rate,
        faultline.refilled(g.tokens, g.refilled_at, l.rate, l.burst, pick_permit_holders.due) as tokens,
        -- One after another, also where several ran when the group was told to keep its order.
        k.nth = 1 and k.group_key <> all (group_keys) and (coalesce(g.holding, 1) <= 1 or g.holding <= (
          select count(*) from faultline.open_jobs r
          where r.queue = limited_queue.queue and r.state = 'queued' and r.group_key is not null and r.in_group is null
            and r.has_permit and r.group_key = k.group_key
        )) as is_next
      from (select k.*, row_number() over (partition by k.group_key order by k.next_run_at, k.id) as nth from kept k) k
      left join lateral (
        select g.ctid as row_id, g.holding, g.tokens, g.refilled_at from faultline.groups g
        where g.group_key = k.group_key and g.queue = limited_queue.queue
        order by g.changed_second desc
        limit 1
      ) g on true
      cross join lateral (select faultline.group_limit(limited_queue.queue, k.group_key) as fields offset 0) f
      cross join lateral (
        select faultline.rate_of(f.fields) as rate, (f.fields ->> 'burst')::double precision as burst
      ) l
    ),
    starting as materialized (
      select j.*
      from judged j
      where j.is_next and (j.rate is null or j.tokens >= 1)
      order by j.next_run_at, j.id
      limit pick_permit_holders.most - cardinality(ctids)
    ),
    paid as (
      update faultline.groups g
      set tokens = j.tokens - 1, refilled_at = faultline.refill_moment(g.refilled_at, pick_permit_holders.due)
      from starting j
      where g.ctid = j.row_id and j.rate is not null
    ),
    put_off as (
      update faultline.open_jobs j
      set next_run_at = pick_permit_holders.due
            + case when n.is_next then make_interval(secs => (1 - n.tokens) / n.rate) else '1 second' end,
          group_at = coalesce(j.group_at, j.next_run_at)
      from judged n
      where j.ctid = n.ctid and (not n.is_next or n.rate is not null and n.tokens < 1)
    )
    select
      (select count(*) from kept) as met, array_agg(j.ctid) as ctids, array_agg(j.group_key) as group_keys
    into part
    from starting j;
    ctids := ctids || part.ctids;
    group_keys := group_keys || part.group_keys;
    exit when part.met < looks or cardinality(ctids) >= pick_permit_holders.most;
  end loop;
  return ctids;
end
$$;

-- Due jobs of groups, in the order of fair queueing: see share_room. Before: the caller holds the queue's lock. After: the groups
-- have their new virtual times, tokens and permits, for the jobs whose ctids are returned, locked.
-- Up to 1,000 groups are served in one round. Where a round finds no job, because they are locked, or were cancelled or expired
-- with many others, the next one looks at one job each of ten times as many groups, 500 at most: a claim of one job would look at
-- them one by one.
create or replace function faultline.pick_groups(
  inout limited_queue faultline.limited_queues, due timestamptz, most integer, out ctids tid[]
)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  remaining integer := pick_groups.most;
  looks integer := pick_groups.most;
  locked integer := 0;
  groups faultline.ready_group[];
  served faultline.served_group[];
  picked tid[];
begin
  ctids := '{}';
  for round in 1..20 loop
    exit when remaining <= 0;
    groups := faultline.list_ready_groups(limited_queue, due, looks);
    exit when cardinality(groups) = 0;
    if looks <= remaining then
      served := faultline.pick_from_groups(limited_queue.queue, due, groups, faultline.share_room(groups, remaining));
    else
      served := faultline.pick_from_groups(
        limited_queue.queue, due, groups, array(select least(g.room, 1) from unnest(groups) g)
      );
      -- The first that have one. The others stay as they are, though their jobs are locked until the commit.
      served := array(
        select f.served_group
        from (
          select s as served_group, sum(s.jobs) over (rows unbounded preceding) as claimed from unnest(served) s
        ) f
        where f.claimed <= remaining
      );
    end if;
    perform faultline.save_served_groups(served, due);
    picked := array(select unnest(s.ctids) from unnest(served) s);
    ctids := ctids || picked;
    remaining := remaining - cardinality(picked);
    limited_queue.virtual_time := greatest(
      limited_queue.virtual_time, (select min(s.virtual_time) from unnest(served) s where s.jobs > 0)
    );
    -- A group that comes in after this grant stands where one of weight 1 stands that was served now: behind those that wait, also
    -- those that were served just before.
    limited_queue.arrival_virtual_time :=
      greatest(limited_queue.arrival_virtual_time, limited_queue.virtual_time + 1) + cardinality(picked) * 1e-6;
    looks := case when picked = '{}' then greatest(remaining, least(10 * looks, 500)) else remaining end;
    -- To look past locked jobs takes longest, and other claims wait meanwhile: the next claim goes on.
    locked := locked + (select count(*) from unnest(served) s where not s.are_first);
    limited_queue.unfinished := limited_queue.unfinished or round = 20 or locked >= 500;
    exit when locked >= 500;
  end loop;
end
$$;

-- Groups whose time has come are ready again: there is a token, or a row may no longer be locked. A time that a clock set far
-- ahead is no time. They stand behind all that wait, and groups that come in later stand behind them.
create or replace function faultline.mark_groups_ready(
  inout limited_queue faultline.limited_queues, due timestamptz
)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  marked integer;
begin
  update faultline.groups g
  set ready = g.has_waiting, not_before = null,
      virtual_time = greatest(g.virtual_time, limited_queue.arrival_virtual_time + n.nth * 1e-9),
      changed_second = greatest(g.changed_second, extract(epoch from due)::bigint)
  from (
    select o.row_id, o.nth
    from (
      select o.ctid as row_id, row_number() over (order by o.not_before) as nth
      from faultline.groups o
      where o.queue = limited_queue.queue and o.not_before <= mark_groups_ready.due
      order by o.not_before
      limit 1000
    ) o
    offset 0
  ) n
  where g.ctid = n.row_id;
  get diagnostics marked = row_count;
  limited_queue.arrival_virtual_time := limited_queue.arrival_virtual_time + marked * 1e-9;
end
$$;

-- The groups of a queue that may be granted something, at most 1,000: those that hold least for their weight come first, then
-- those with the least virtual time. Each with its limits, and with `room`: how many of its jobs may start now.
create or replace function faultline.list_ready_groups(
  limited_queue faultline.limited_queues, due timestamptz, most integer
) returns faultline.ready_group[]
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  each_group constant faultline.group_limits := faultline.each_group_limits(limited_queue.queue);
begin
  return array(
    select row(
      g.row_id, g.group_key, g.holding, g.virtual_time, g.refilled_at, g.head_priority, g.head_at, g.head_id,
      l.cap, l.rate, l.weight, t.tokens,
      greatest(0, least(l.cap - g.holding, coalesce(floor(t.tokens), most), most))::integer
    )::faultline.ready_group
    from (
      -- Those that hold nothing are read from the queue's virtual time on: none of them stands before it but dead entries,
      -- which vacuum cannot remove while a session holds an old snapshot.
      (
        select g.ctid as row_id, g.* from faultline.groups g
        where g.queue = limited_queue.queue and g.ready and g.holding_per_weight = 0 and g.virtual_time >= limited_queue.virtual_time
        order by g.virtual_time, g.group_key
        limit least(most, 1000)
      )
      union all
      (
        select g.ctid as row_id, g.* from faultline.groups g
        where g.queue = limited_queue.queue and g.ready and g.holding_per_weight > 0
        order by g.holding_per_weight, g.virtual_time, g.group_key
        limit least(most, 1000)
      )
      limit least(most, 1000)
    ) g
    cross join lateral faultline.limits_of_group(limited_queue.queue, g.group_key, each_group) l
    cross join lateral (
      select faultline.refilled(g.tokens, g.refilled_at, l.rate, l.burst, list_ready_groups.due) as tokens offset 0
    ) t
  );
end
$$;

-- How many jobs each of these groups is granted of `room`: as if one job after another were granted to the group that holds least
-- for its weight, then to the one with the least virtual time. In one round no group gets more than twice its part.
create or replace function faultline.share_room(groups faultline.ready_group[], room integer) returns integer[]
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  weights double precision;
  one_each boolean;
begin
  -- Nothing to choose: no group may have two, or there is one for each and no second job comes before another group's first.
  select
    sum(g.weight),
    max(g.room) <= 1 or count(*) = share_room.room and max(g.holding / g.weight) < min((g.holding + 1) / g.weight)
  into weights, one_each
  from unnest(groups) g;
  if one_each then
    return array(select least(g.room, 1) from unnest(groups) g);
  end if;
  return array(
    select count(*) filter (where s.nth_job <= share_room.room)
    from (
      select
        g.nth_group,
        case when n.nth is not null then
          row_number() over (order by (g.holding + n.nth - 1) / g.weight, g.virtual_time + (n.nth - 1) / g.weight, g.group_key)
        end as nth_job
      from (select row_number() over () as nth_group, g.* from unnest(groups) g) g
      left join lateral generate_series(
        1, least(g.room, 2 + ceil(2 * share_room.room * g.weight / weights)::integer)
      ) as n (nth) on true
    ) s
    group by s.nth_group
    order by s.nth_group
  );
end
$$;

-- The next jobs of these groups, `counts[n]` of the nth: locked. Before: the caller holds the queue's lock.
create or replace function faultline.pick_from_groups(
  queue text, due timestamptz, groups faultline.ready_group[], counts integer[]
) returns faultline.served_group[]
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  return array(
    -- First seen, then locked: a row that another session has locked must not be forgotten by moving the group's head past it.
    with seen as materialized (
      select a.*, j.ctids[:a.want] as ctids, coalesce(least(j.seen, a.want), 0) as taken, j.seen,
        j.last_priority, j.last_at, j.last_id
      from rows from (unnest(groups), unnest(counts)) as a (
        row_id, group_key, holding, virtual_time, refilled_at, head_priority, head_at, head_id, cap, rate, weight, tokens, room,
        want
      )
      left join lateral (
        select
          array_agg(x.ctid) as ctids, count(*)::integer as seen,
          (array_agg(x.priority))[least(count(*), a.want)] as last_priority,
          (array_agg(x.group_at))[least(count(*), a.want)] as last_at,
          (array_agg(x.id))[least(count(*), a.want)] as last_id
        from (
          select r.ctid, r.priority, r.group_at, r.id
          from faultline.open_jobs r
          where a.want > 0
            and r.queue = pick_from_groups.queue
            and r.group_key = a.group_key
            and r.in_group
            -- Not from it on: what an earlier round has picked is still in its group.
            and (r.priority, r.group_at, r.id) > (a.head_priority, a.head_at, a.head_id)
            and (r.expires_at is null or r.expires_at > pick_from_groups.due or r.fencing_token > 0)
          order by r.priority, r.group_at, r.id
          -- One more, to know whether the group is empty now.
          limit a.want + 1
        ) x
      ) j on true
      -- One that may have more, and gets nothing this time, stays as it is.
      where a.want > 0 or a.room = 0
    ),
    locked as materialized (
      select r.ctid
      from faultline.open_jobs r
      where r.ctid = any (array(select unnest(s.ctids) from seen s))
        -- Checked again, since another session may have been faster. Written so that no index fits: one would be walked instead.
        and coalesce(r.in_group, false) and coalesce(r.state, '') = 'queued'
      for update skip locked
    ),
    -- A row that was changed since it was seen has another ctid, and is left for the next time.
    claimed as materialized (
      select c.ctids, cardinality(c.ctids) = (select sum(s.taken) from seen s) as are_all
      from (select array(select k.ctid from locked k intersect select unnest(s.ctids) from seen s) as ctids offset 0) c
    )
    select row(
      s.row_id, j.jobs, j.ctids, s.holding + j.jobs, s.virtual_time, s.refilled_at, s.cap, s.rate, s.weight, s.tokens - j.jobs,
      s.want = 0 or not j.are_first or s.seen > s.taken, j.are_first, s.last_priority, s.last_at, s.last_id
    )::faultline.served_group
    from seen s
    cross join claimed c
    cross join lateral (
      -- Nearly always all: then none is searched for among the others.
      select c.are_all or (select count(*) from unnest(s.ctids) as p (ctid) where p.ctid = any (c.ctids)) = s.taken as are_first
      offset 0
    ) f
    cross join lateral (
      select f.are_first, p.ctids, coalesce(cardinality(p.ctids), 0) as jobs
      from (
        select case
          when f.are_first then s.ctids
          -- Nothing lies behind them.
          when s.seen <= s.taken then array(select p.ctid from unnest(s.ctids) as p (ctid) where p.ctid = any (c.ctids))
          else faultline.pick_past_locked_head(
            pick_from_groups.queue, s.group_key, s.head_priority, s.head_at, s.head_id, pick_from_groups.due, s.taken
          )
        end as ctids
      ) p
      offset 0
    ) j
  );
end
$$;

-- The first jobs of a group whose rows are not locked, up to `most`, where some of the very first are. Returns their ctids, locked.
-- Otherwise a transaction that stays open after it was answered with a unique job would stop the whole group.
-- None where the group keeps its order. Looks past 100 locked rows at most: other claims wait meanwhile.
create or replace function faultline.pick_past_locked_head(
  queue text, group_key text, head_priority integer, head_at timestamptz, head_id uuid, due timestamptz, most integer
) returns tid[]
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  if (faultline.group_limit(pick_past_locked_head.queue, pick_past_locked_head.group_key) ->> 'ordered')::boolean then
    return '{}';
  end if;
  return array(
    select r.ctid
    from (
      select r.ctid as row_id
      from faultline.open_jobs r
      where r.queue = pick_past_locked_head.queue
        and r.group_key = pick_past_locked_head.group_key
        and r.in_group
        and (r.priority, r.group_at, r.id)
          > (pick_past_locked_head.head_priority, pick_past_locked_head.head_at, pick_past_locked_head.head_id)
        and (r.expires_at is null or r.expires_at > pick_past_locked_head.due or r.fencing_token > 0)
      order by r.priority, r.group_at, r.id
      limit pick_past_locked_head.most + 100
    ) x
    join faultline.open_jobs r on r.ctid = x.row_id
    -- Checked again, since another session may have been faster: it may be in another group by now. Written so that no index
    -- fits, as in pick_from_groups.
    where coalesce(r.in_group, false) and coalesce(r.state, '') = 'queued'
      and coalesce(r.group_key, '') = pick_past_locked_head.group_key
    limit pick_past_locked_head.most
    for update of r skip locked
  );
end
$$;

-- Write what a claim has taken from groups. Before: the caller holds the queue's lock.
-- A group moves on by one for each job, divided by its weight. It is ready again at once where it may have more jobs now;
-- otherwise an event makes it so, or it is looked at when it has a token.
create or replace function faultline.save_served_groups(served faultline.served_group[], due timestamptz) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  update faultline.groups g
  set changed_second = greatest(g.changed_second, extract(epoch from due)::bigint),
      holding = s.holding,
      holding_per_weight = s.holding / s.weight,
      virtual_time = s.virtual_time + s.jobs / s.weight,
      tokens = s.tokens,
      refilled_at = case when s.rate is not null then faultline.refill_moment(s.refilled_at, due) end,
      has_waiting = s.has_more,
      ready = s.has_more and s.holding < s.cap and s.are_first and (s.tokens < 1) is not true,
      not_before = case
        when not s.has_more then null
        when s.tokens < 1 then due + make_interval(secs => (1 - s.tokens) / s.rate)
        -- What is there is locked: look again a little later.
        when not s.are_first then due + interval '100 milliseconds'
      end,
      head_priority = case when s.are_first then coalesce(s.last_priority, g.head_priority) else g.head_priority end,
      head_at = case when s.are_first then coalesce(s.last_at, g.head_at) else g.head_at end,
      head_id = case when s.are_first then coalesce(s.last_id, g.head_id) else g.head_id end
  from unnest(served) s
  where g.ctid = s.row_id;
end
$$;

-- Due jobs of no group, of a queue with limits: lowest priority number first, then the longest due. Returns their ctids,
-- locked. As in `claim`, each priority is a range scan of its own. Passes over 1,000 others at most: see has_due_ungrouped.
create or replace function faultline.pick_ungrouped(queue text, due timestamptz, most integer) returns tid[]
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  ctids tid[] := '{}';
  level integer := -32769;
  found_level integer;
begin
  while cardinality(ctids) < pick_ungrouped.most loop
    select j.priority into found_level
    from faultline.open_jobs j
    where j.queue = pick_ungrouped.queue and j.state = 'queued'
      and j.priority > level and j.priority < case when level < 0 then 0 else 32768 end
    order by j.priority
    limit 1;
    -- Priority 0 is not searched for: see has_due_ungrouped.
    if found then
      level := found_level;
    elsif level < 0 then
      level := 0;
    else
      exit;
    end if;
    ctids := ctids || array(
      select r.ctid
      from (
        select
          r.ctid as row_id,
          r.group_key is null and (r.expires_at is null or r.expires_at > pick_ungrouped.due or r.fencing_token > 0) as may_start
        from faultline.open_jobs r
        where r.queue = pick_ungrouped.queue
          and r.state = 'queued'
          and r.priority = level
          and r.next_run_at <= pick_ungrouped.due
        order by r.next_run_at, r.id
        limit pick_ungrouped.most - cardinality(ctids) + 1000
      ) x
      join faultline.open_jobs r on r.ctid = x.row_id
      where x.may_start
        -- Checked again, since another session may have been faster. Written so that no index fits, as in pick_from_groups.
        and coalesce(r.state, '') = 'queued'
      limit pick_ungrouped.most - cardinality(ctids)
      for update of r skip locked
    );
  end loop;
  return ctids;
end
$$;
