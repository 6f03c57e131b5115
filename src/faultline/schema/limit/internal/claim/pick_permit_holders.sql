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
