-- What sample counts.

-- Queues that a worker has worked on within a day, and those whose last sample was not empty.
create or replace function faultline.queues_seen(at timestamptz) returns setof text
language plpgsql stable
as $$
#variable_conflict use_column
begin
  return query
    with recursive tallied (name) as (
      (select queue from faultline.tallies order by queue limit 1)
      union all
      select (select t.queue from faultline.tallies t where t.queue > f.name order by t.queue limit 1)
      from tallied f
      where f.name is not null
    ),
    sampled (name) as (
      (select queue from faultline.samples order by queue limit 1)
      union all
      select (select s.queue from faultline.samples s where s.queue > f.name order by s.queue limit 1)
      from sampled f
      where f.name is not null
    )
    select f.name from tallied f
    where exists (select from faultline.tallies t where t.queue = f.name and t.minute > at - interval '1 day')
    union
    select f.name from sampled f
    cross join lateral (select * from faultline.samples s where s.queue = f.name order by s.minute desc limit 1) s
    where s.due + s.delayed + s.running + s.failed > 0;
end
$$;

-- Queued jobs by queue, and how many of them are due. A queue with up to `exact_max` of them is counted exactly, as long as all queues
-- together have up to twice as many; else `estimated` is true, and there are at least so many. `since`: since when the oldest job that
-- is in its group waits. A queue with more than a hundredth of `exact_max` is crowded.
create or replace function faultline.count_queued(at timestamptz, exact_max integer) returns table (
  name text,
  jobs bigint,
  due bigint,
  since timestamptz,
  estimated boolean
)
language plpgsql stable
as $$
#variable_conflict use_column
declare
  few_max constant integer := greatest(1, count_queued.exact_max / 100);
begin
  return query
    with few as materialized (
      select f.name, c.*
      from faultline.waiting_queues() f (name)
      cross join lateral (
        select
          count(*) as jobs,
          count(*) filter (where j.next_run_at <= at) as due
        from (
          select j.next_run_at from faultline.open_jobs j where j.state = 'queued' and j.queue = f.name limit few_max + 1
        ) j
      ) c
    ),
    crowded as materialized (
      select f.name from few f where f.jobs > few_max
    ),
    bound (jobs) as materialized (
      select greatest(few_max, least(count_queued.exact_max, 2 * count_queued.exact_max::bigint / greatest(1, count(*)))) from crowded
    ),
    many as materialized (
      select f.name, c.*
      from crowded f
      cross join lateral (
        select
          count(*) as jobs,
          count(*) filter (where j.next_run_at <= at) as due
        from (
          select j.next_run_at from faultline.open_jobs j
          where j.state = 'queued' and j.queue = f.name
          limit (select b.jobs + 1 from bound b)
        ) j
      ) c
    ),
    grouped as materialized (
      select g.* from bound b cross join lateral faultline.count_grouped(b.jobs + 1) g
    )
    select
      f.name, f.jobs, least(f.jobs, f.due + coalesce(g.jobs, 0)) as due, g.since, false as estimated
    from few f
    left join grouped g on g.name = f.name
    where f.jobs <= few_max
    union all
    select m.name, m.jobs, least(m.jobs, m.due + coalesce(g.jobs, 0)), g.since, m.jobs > b.jobs
    from many m
    cross join bound b
    left join grouped g on g.name = m.name;
end
$$;

-- Count queued, running and failed jobs by queue, as `sample` says. Before: the caller plans for full tables. `estimated` names the
-- estimated counts.
create or replace function faultline.count_jobs(at timestamptz, exact_max integer) returns table (
  queue text,
  due bigint,
  delayed bigint,
  running bigint,
  failed bigint,
  oldest_due_at timestamptz,
  estimated text[]
)
language plpgsql stable
as $$
#variable_conflict use_column
declare
  pages constant double precision := pg_relation_size('faultline.open_jobs') / current_setting('block_size')::integer;
  percent constant double precision := least(100, 100 * 2000 / greatest(1, pages));
begin
  return query
    with queued as materialized (
      select * from faultline.count_queued(count_jobs.at, count_jobs.exact_max)
    ),
    leased as materialized (
      select j.queue::text as name, count(*) as running
      from (
        select j.queue from faultline.open_jobs j
        where j.state = 'running' and j.lease_expires_at <= 'infinity'
        limit count_jobs.exact_max::bigint + 1
      ) j
      group by j.queue
    ),
    ended as materialized (
      select j.queue::text as name, count(*) as failed
      from (
        select j.queue from faultline.open_jobs j
        where j.state in ('failed', 'cancelled') and j.state = 'failed' and j.finished_at <= 'infinity'
        limit count_jobs.exact_max::bigint + 1
      ) j
      group by j.queue
    ),
    too_many as materialized (
      select
        exists (select from queued q where q.estimated) as queued,
        (select sum(l.running) from leased l) > count_jobs.exact_max as running,
        (select sum(e.failed) from ended e) > count_jobs.exact_max as failed
    ),
    drawn as materialized (
      select
        j.queue::text as name,
        round(count(*) filter (where j.state = 'queued' and (j.next_run_at <= at or j.in_group)) * 100 / percent)::bigint as due,
        round(count(*) filter (where j.state = 'queued' and j.next_run_at > at and j.in_group is not true) * 100 / percent)::bigint as delayed,
        round(count(*) filter (where j.state = 'running') * 100 / percent)::bigint as running,
        round(count(*) filter (where j.state = 'failed') * 100 / percent)::bigint as failed
      from faultline.open_jobs j
      -- Read no pages if every count is exact.
      tablesample system ((select case when m.queued or m.running or m.failed then percent else 0 end from too_many m))
        repeatable (0)
      group by j.queue
    ),
    known (name) as (
      select * from faultline.queues_seen(count_jobs.at)
      union
      select q.name from queued q
      union
      select l.name from leased l
      union
      select e.name from ended e
      union
      select d.name from drawn d
    )
    select
      k.name,
      -- An estimate is never below what was counted.
      coalesce(greatest(q.due, case when q.estimated then d.due end), 0),
      coalesce(greatest(q.jobs - q.due, case when q.estimated then d.delayed end), 0),
      coalesce(greatest(l.running, case when m.running then d.running end), 0),
      coalesce(greatest(e.failed, case when m.failed then d.failed end), 0),
      least(o.since, q.since),
      array_remove(array[
        case when q.estimated then 'due' end,
        case when q.estimated then 'delayed' end,
        case when m.running then 'running' end,
        case when m.failed then 'failed' end
      ], null)
    from known k
    cross join too_many m
    left join queued q on q.name = k.name
    left join faultline.oldest_due(count_jobs.at) o on o.name = k.name
    left join leased l on l.name = k.name
    left join ended e on e.name = k.name
    left join drawn d on d.name = k.name;
end
$$;

-- Jobs that wait in their groups, by queue, up to `most` of each, and since when the oldest of them does. One index lookup for each
-- queue; none where nobody uses groups.
create or replace function faultline.count_grouped(most bigint) returns table (name text, jobs bigint, since timestamptz)
language plpgsql stable
as $$
#variable_conflict use_column
begin
  return query
    with recursive grouping (name) as (
      (select j.queue::text from faultline.open_jobs j where j.in_group order by j.queue limit 1)
      union all
      select (
        select j.queue::text from faultline.open_jobs j where j.in_group and j.queue > f.name order by j.queue limit 1
      )
      from grouping f
      where f.name is not null
    )
    select f.name, c.jobs, o.since
    from grouping f
    cross join lateral (
      select count(*) as jobs
      from (
        select from faultline.open_jobs j where j.in_group and j.queue = f.name limit count_grouped.most
      ) j
    ) c
    cross join lateral (
      select min(greatest(d.group_at, j.created_at)) as since
      from (
        select w.group_at, w.id
        from (
          select j.group_at, j.id from faultline.open_jobs j
          where j.in_group and j.queue = f.name
          limit count_grouped.most
        ) w
        order by w.group_at limit 100
      ) d
      join faultline.open_jobs j on j.id = d.id
    ) o
    where f.name is not null;
end
$$;

-- Queues with queued jobs: one index lookup for each.
create or replace function faultline.waiting_queues() returns setof text
language plpgsql stable
as $$
#variable_conflict use_column
begin
  return query
    with recursive waiting (name) as (
      (select j.queue::text from faultline.open_jobs j where j.state = 'queued' order by j.queue limit 1)
      union all
      select (
        select j.queue::text from faultline.open_jobs j where j.state = 'queued' and j.queue > f.name order by j.queue limit 1
      )
      from waiting f
      where f.name is not null
    )
    select f.name from waiting f where f.name is not null;
end
$$;

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
