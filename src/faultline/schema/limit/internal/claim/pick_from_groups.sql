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
