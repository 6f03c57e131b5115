-- Whether a permit of a queue with limits is counted wrong, or a job runs that is not counted. One statement, so one snapshot,
-- in which all counts must be right. It locks nothing: `maintain_limits` locks the queue only to correct what is wrong.
create or replace function faultline.is_miscounted(queue text) returns boolean
language plpgsql volatile
set plan_cache_mode = force_custom_plan
set jit = off
as $$
#variable_conflict use_column
begin
  return (
    with permits as materialized (
      select j.group_key, true as runs
      from faultline.open_jobs j
      where j.state = 'running' and j.lease_expires_at <= 'infinity' and j.queue = is_miscounted.queue
      union all
      -- Kept while its job waits for another attempt.
      select j.group_key, false
      from faultline.open_jobs j
      where j.queue = is_miscounted.queue
        and j.state = 'queued' and j.group_key is not null and j.in_group is null and j.has_permit
    ),
    events as materialized (
      select e.freed, e.group_keys, e.freed_groups from faultline.group_events e where e.queue = is_miscounted.queue
    )
    select (
      select l.holding <> (select count(*) from permits p where p.runs) + (select coalesce(sum(e.freed), 0) from events e)
      from faultline.limited_queues l
      where l.queue = is_miscounted.queue
    ) or exists (
      select
      from (
        select g.group_key, g.holding from faultline.groups g where g.queue = is_miscounted.queue and g.holding <> 0
        union all
        select p.group_key, -1 from permits p where p.group_key is not null
        union all
        select p.group_key, -p.freed_group
        from events e
        cross join lateral unnest(e.group_keys, e.freed_groups) as p (group_key, freed_group)
        where p.freed_group <> 0
      ) k
      group by k.group_key
      having sum(k.holding) <> 0
    )
  );
end
$$;
