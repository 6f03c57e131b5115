-- Let due jobs of groups go to their groups: they were delayed, retried or given back. At most 1,000 at a time in a claim, so
-- that a storm of them delays a claim by milliseconds; the next claim goes on. Before events are applied: it makes some.
create or replace function faultline.move_due_jobs_into_groups(
  queue text, due timestamptz, most integer default 1000
) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  arrived record;
begin
  with due_now as materialized (
    select r.ctid
    from faultline.open_jobs r
    where r.queue = move_due_jobs_into_groups.queue
      and r.state = 'queued' and r.group_key is not null and r.in_group is null
      and r.has_permit is null
      and r.next_run_at <= move_due_jobs_into_groups.due
    -- By `has_permit` too, which is null: without it, the planner does not see that the index is in this order.
    order by r.has_permit, r.next_run_at, r.id
    limit move_due_jobs_into_groups.most
    for update skip locked
  ),
  moved as (
    update faultline.open_jobs j
    -- Its time is up, if it was suspended: it needs no other wake-up.
    set in_group = true, group_at = j.next_run_at, next_run_at = '9999-01-01Z', suspended = null
    where j.ctid = any (array(select d.ctid from due_now d))
    returning j.group_key, j.priority, j.group_at
  )
  select array_agg(g.group_key) as group_keys, array_agg(g.priority) as priorities, array_agg(g.run_at) as run_ats
  into arrived
  from (
    select m.group_key, min(m.priority) as priority, min(m.group_at) as run_at from moved m group by m.group_key
  ) g;
  perform faultline.insert_group_events(
    move_due_jobs_into_groups.queue, arrived.group_keys, null, arrived.priorities, arrived.run_ats
  );
end
$$;
