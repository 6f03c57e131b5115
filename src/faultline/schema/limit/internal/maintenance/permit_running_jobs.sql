-- Count the jobs of a queue that run without a permit: they were claimed before it had limits, or in that moment. Rows that are
-- locked are counted the next time: `maintain_limits` looks once a minute. Before: the caller holds the queue's lock.
create or replace function faultline.permit_running_jobs(queue text) returns integer
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  marked record;
begin
  with found as materialized (
    select j.ctid
    from faultline.open_jobs j
    where j.state = 'running' and j.lease_expires_at <= 'infinity' and j.queue = permit_running_jobs.queue and j.has_permit is null
    for update skip locked
  ),
  done as (
    update faultline.open_jobs j
    set has_permit = true
    from found f
    where j.ctid = f.ctid
    returning j.group_key
  )
  select
    coalesce(sum(g.jobs), 0)::integer as jobs,
    array_agg(g.group_key) filter (where g.group_key is not null) as group_keys,
    array_agg(-g.jobs::integer) filter (where g.group_key is not null) as freed_groups
  into marked
  from (select d.group_key, count(*) as jobs from done d group by d.group_key) g;
  -- As events that take permits: the next claim adds them up.
  if marked.jobs > 0 then
    insert into faultline.group_events (queue, freed) values (permit_running_jobs.queue, -marked.jobs);
    perform faultline.insert_group_events(permit_running_jobs.queue, marked.group_keys, marked.freed_groups, null, null);
  end if;
  return marked.jobs;
end
$$;
