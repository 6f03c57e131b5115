-- Since when the oldest due job of each queue waits: one index lookup for each of its priorities.
create or replace function faultline.oldest_due(at timestamptz) returns table (name text, since timestamptz)
language plpgsql stable
as $$
#variable_conflict use_column
begin
  return query
    with recursive levels (name, priority) as (
      select f.name, (
        select j.priority from faultline.open_jobs j
        where j.state = 'queued' and j.queue = f.name
        order by j.priority limit 1
      )
      from faultline.waiting_queues() f (name)
      union all
      select p.name, (
        select j.priority from faultline.open_jobs j
        where j.state = 'queued' and j.queue = p.name and j.priority > p.priority
        order by j.priority limit 1
      )
      from levels p
      where p.priority is not null
    )
    -- A job waits from its creation at the earliest, even if its run_at is before that.
    select p.name, min(greatest(d.next_run_at, d.created_at)) as since
    from levels p
    cross join lateral (
      select j.next_run_at, j.created_at from faultline.open_jobs j
      where j.state = 'queued' and j.queue = p.name and j.priority = p.priority
      order by j.next_run_at limit 100
    ) d
    where d.next_run_at <= oldest_due.at
    group by p.name;
end
$$;
