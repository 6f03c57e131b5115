-- Due jobs of groups, in the order of fair queueing: the group that holds least for its weight first, then the one with the
-- least virtual time. Before: the caller holds the queue's lock. After: the groups have their new virtual times, tokens and
-- permits, for the jobs whose ctids are returned, locked. Up to 1,000 groups are served in one statement, each with what it
-- would get one by one.
create or replace function faultline.pick_groups(
  inout limited_queue faultline.limited_queues, due timestamptz, most integer, out ctids tid[]
)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  second constant bigint := extract(epoch from due);
  each_group constant jsonb := coalesce(
    (select l.effective from faultline.limits l where l.queue = limited_queue.queue and l.group_key = '*'), '{}'
  );
  -- Read from the fields once, and not for every group.
  each_cap constant integer := coalesce(faultline.cap_of(each_group), 2147483647);
  each_rate constant double precision := faultline.rate_of(each_group);
  each_burst constant double precision := (each_group ->> 'burst')::double precision;
  each_weight constant double precision := faultline.weight_of(each_group);
  have_own constant boolean := exists (
    select from faultline.limits l where l.queue = limited_queue.queue and l.group_key not in ('', '*')
  );
  remaining integer := pick_groups.most;
  served record;
begin
  ctids := '{}';
  for round in 1..20 loop
    exit when remaining <= 0;
    with listed as materialized (
      select
        g.*, l.rate, l.weight, l.cap, t.tokens_now,
        greatest(0, least(l.cap - g.holding, coalesce(floor(t.tokens_now), remaining), remaining))::integer as room
      from (
        -- Those that hold nothing are read from the queue's virtual time on: none of them stands before it but dead entries,
        -- which nobody can remove while a session holds an old snapshot.
        (
          select g.ctid as row_id, g.group_key, g.holding, g.virtual_time, g.tokens, g.refilled_at, g.head_priority, g.head_at, g.head_id
          from faultline.groups g
          where g.queue = limited_queue.queue and g.ready and g.holding_per_weight = 0 and g.virtual_time >= limited_queue.virtual_time
          order by g.virtual_time, g.group_key
          limit least(remaining, 1000)
        )
        union all
        (
          select g.ctid as row_id, g.group_key, g.holding, g.virtual_time, g.tokens, g.refilled_at, g.head_priority, g.head_at, g.head_id
          from faultline.groups g
          where g.queue = limited_queue.queue and g.ready and g.holding_per_weight > 0
          order by g.holding_per_weight, g.virtual_time, g.group_key
          limit least(remaining, 1000)
        )
        limit least(remaining, 1000)
      ) g
      left join lateral (
        select each_group || o.effective as fields
        from faultline.limits o
        where have_own and o.queue = limited_queue.queue and o.group_key = g.group_key
        limit 1
      ) o on true
      cross join lateral (
        select
          case when o.fields is null then each_cap else coalesce(faultline.cap_of(o.fields), 2147483647) end as cap,
          case when o.fields is null then each_rate else faultline.rate_of(o.fields) end as rate,
          case when o.fields is null then each_burst else (o.fields ->> 'burst')::double precision end as burst,
          case when o.fields is null then each_weight else faultline.weight_of(o.fields) end as weight
        offset 0
      ) l
      cross join lateral (
        select faultline.refilled(g.tokens, g.refilled_at, l.rate, l.burst, pick_groups.due) as tokens_now offset 0
      ) t
    ),
    known as materialized (
      select
        sum(l.weight) as weights,
        -- Nothing to choose: nobody may have two, or there is one for each and nobody's second comes before another's first.
        max(l.room) <= 1
          or count(*) = remaining and max(l.holding / l.weight) < min((l.holding + 1) / l.weight) as one_each
      from listed l
    ),
    shares as materialized (
      select l.*, least(l.room, 1) as want from listed l where (select k.one_each from known k)
      union all
      -- One by one, as if each grant were a claim of its own; more than twice its part nobody gets in one round. Of each group
      -- its last one is kept, which says how many: a join with the groups would compare all with all.
      select s.row_id, s.group_key, s.holding, s.virtual_time, s.tokens, s.refilled_at, s.head_priority, s.head_at, s.head_id,
        s.rate, s.weight, s.cap, s.tokens_now, s.room, s.want
      from (
        select s.*, count(*) over (partition by s.group_key)::integer as want
        from (
          select l.*, n.nth
          from listed l
          cross join lateral generate_series(
            1, least(l.room, 2 + ceil(2 * remaining * l.weight / (select k.weights from known k))::integer)
          ) as n (nth)
          where not (select k.one_each from known k)
          order by (l.holding + n.nth - 1) / l.weight, l.virtual_time + (n.nth - 1) / l.weight, l.group_key
          limit remaining
        ) s
      ) s
      where s.nth = s.want
      union all
      -- One that may have something, and got no part this time, stays as it is.
      select l.*, 0 from listed l where l.room = 0 and not (select k.one_each from known k)
    ),
    -- First seen, then locked: a row that somebody has locked must not be forgotten by moving the group's head past it.
    seen as materialized (
      select
        a.row_id, a.group_key, a.holding, a.virtual_time, a.refilled_at, a.rate, a.weight, a.cap, a.tokens_now, a.want,
        a.head_priority, a.head_at, a.head_id, j.ctids[:a.want] as ctids, coalesce(least(j.seen, a.want), 0) as taken, j.seen,
        j.last_priority, j.last_at, j.last_id
      from shares a
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
            and r.queue = limited_queue.queue
            and r.group_key = a.group_key
            and r.in_group
            -- Not from it on: what an earlier round has picked is still in its group.
            and (r.priority, r.group_at, r.id) > (a.head_priority, a.head_at, a.head_id)
            and (r.expires_at is null or r.expires_at > pick_groups.due or r.fencing_token > 0)
          order by r.priority, r.group_at, r.id
          -- One more, to know whether the group is empty now.
          limit a.want + 1
        ) x
      ) j on true
    ),
    locked as materialized (
      select r.ctid
      from faultline.open_jobs r
      where r.ctid = any (array(select unnest(s.ctids) from seen s))
        -- Looked at again where somebody was faster. Said so that no index fits: one would be walked instead.
        and coalesce(r.in_group, false) and coalesce(r.state, '') = 'queued'
      for update skip locked
    ),
    -- A row that was changed since it was seen has another ctid, and is left for the next time.
    claimed as materialized (
      select c.ctids, cardinality(c.ctids) = (select sum(s.taken) from seen s) as are_all
      from (select array(select k.ctid from locked k intersect select unnest(s.ctids) from seen s) as ctids offset 0) c
    ),
    judged as materialized (
      select
        s.row_id, s.virtual_time, s.refilled_at, s.rate, s.weight, s.cap, s.taken, s.last_priority, s.last_at, s.last_id,
        f.are_first, b.ctids, c.jobs, s.holding + c.jobs as holding_now, s.tokens_now - c.jobs as tokens_left,
        s.want = 0 or not f.are_first or s.seen > s.taken as has_more
      from seen s
      cross join claimed g
      cross join lateral (
        -- Nearly always all: then none is searched for among the others.
        select case
          when g.are_all then true
          else (select count(*) from unnest(s.ctids) as p (ctid) where p.ctid = any (g.ctids)) = s.taken
        end as are_first
        offset 0
      ) f
      cross join lateral (
        select case
          when g.are_all then null
          when f.are_first then s.ctids
          -- Nothing lies behind them.
          when s.seen <= s.taken then array(select p.ctid from unnest(s.ctids) as p (ctid) where p.ctid = any (g.ctids))
          else faultline.pick_past_locked_head(
            limited_queue.queue, s.group_key, s.head_priority, s.head_at, s.head_id, pick_groups.due, s.taken
          )
        end as ctids
        offset 0
      ) b
      cross join lateral (select case when f.are_first then s.taken else cardinality(b.ctids) end as jobs offset 0) c
    ),
    changed as (
      update faultline.groups g
      set changed_second = greatest(g.changed_second, second),
          holding = j.holding_now,
          holding_per_weight = j.holding_now / j.weight,
          virtual_time = j.virtual_time + j.jobs / j.weight,
          tokens = j.tokens_left,
          refilled_at = case when j.rate is not null then faultline.refill_moment(j.refilled_at, pick_groups.due) end,
          has_waiting = j.has_more,
          ready = j.has_more and j.holding_now < j.cap and j.are_first and (j.tokens_left < 1) is not true,
          not_before = case
            when not j.has_more then null
            when j.tokens_left < 1 then pick_groups.due + make_interval(secs => (1 - j.tokens_left) / j.rate)
            -- Somebody has locked what is there: look again a little later.
            when not j.are_first then pick_groups.due + interval '100 milliseconds'
          end,
          head_priority = case when j.are_first then coalesce(j.last_priority, g.head_priority) else g.head_priority end,
          head_at = case when j.are_first then coalesce(j.last_at, g.head_at) else g.head_at end,
          head_id = case when j.are_first then coalesce(j.last_id, g.head_id) else g.head_id end
      from judged j
      where g.ctid = j.row_id
    )
    select
      (select count(*) from listed) as groups,
      case
        when (select g.are_all from claimed g) then (select g.ctids from claimed g)
        else array(select unnest(j.ctids) from judged j)
      end as ctids,
      min(j.virtual_time) filter (where j.jobs > 0) as virtual_time
    into served
    from judged j;
    exit when served.groups = 0;
    ctids := ctids || served.ctids;
    remaining := remaining - cardinality(served.ctids);
    limited_queue.virtual_time := greatest(limited_queue.virtual_time, served.virtual_time);
    -- Who comes in after this grant stands behind who came in before it.
    limited_queue.arrival_virtual_time :=
      greatest(limited_queue.arrival_virtual_time, limited_queue.virtual_time) + cardinality(served.ctids) * 1e-6;
    if served.ctids = '{}' then
      perform faultline.clear_gone(limited_queue, due);
    end if;
    limited_queue.unfinished := limited_queue.unfinished or round = 20;
  end loop;
end
$$;
