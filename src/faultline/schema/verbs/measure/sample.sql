-- Count queued, running and failed jobs by queue, and store the counts. Returns whether it did. Locks no job.
-- Any number of sessions may call it: one counts at a time, at most every 5 seconds, and less often (up to every 30
-- seconds) if counting takes more than 2 % of the time.
--
-- It reads a bounded number of rows. A queue with up to `exact_max` queued jobs is counted exactly, as long as all queues
-- together have up to twice as many; the rest is estimated from 2,000 pages of the table. These are always the same pages,
-- so that the error of an estimate stays about the same and growth shows. `estimated` names the estimated counts.
--
-- A job that waits in its group is due, though its `next_run_at` lies in the last year: these are counted on their own index.
--
-- An empty queue gets a row if a worker has worked on it within a day, or if its last row was not empty. So a queue
-- without a new row is empty, and its last row says so.
create or replace function faultline.sample(exact_max integer default 100000) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan
set jit = off
set max_parallel_workers_per_gather = 0
set enable_seqscan = off
set max_parallel_workers_per_gather = 0
as $$
declare
  began constant timestamptz := faultline.clock();
  -- A queue with more queued jobs is crowded.
  few_max constant integer := greatest(1, sample.exact_max / 100);
  pages constant double precision := pg_relation_size('faultline.open_jobs') / current_setting('block_size')::integer;
  percent constant double precision := least(100, 100 * 2000 / greatest(1, pages));
begin
  perform faultline.check_most('exact_max', sample.exact_max);
  if not pg_try_advisory_xact_lock(hashtextextended('faultline sample', 0)) then
    return false;
  end if;
  if exists (
    select from faultline.sampling l
    where began >= l.sampled_at
      and began < l.sampled_at + make_interval(secs => least(30, greatest(5, 50 * l.took_seconds)))
  ) then
    return false;
  end if;
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
  ),
  -- One index lookup for each queue, and for each of its priorities.
  waiting (name) as (
    (select j.queue::text from faultline.open_jobs j where j.state = 'queued' order by j.queue limit 1)
    union all
    select (
      select j.queue::text from faultline.open_jobs j where j.state = 'queued' and j.queue > f.name order by j.queue limit 1
    )
    from waiting f
    where f.name is not null
  ),
  levels (name, priority) as (
    select f.name, (
      select j.priority from faultline.open_jobs j
      where j.state = 'queued' and j.queue = f.name
      order by j.priority limit 1
    )
    from waiting f
    where f.name is not null
    union all
    select p.name, (
      select j.priority from faultline.open_jobs j
      where j.state = 'queued' and j.queue = p.name and j.priority > p.priority
      order by j.priority limit 1
    )
    from levels p
    where p.priority is not null
  ),
  oldest as (
    -- A job waits from its creation at the earliest, even if its run_at is before that.
    select p.name, min(greatest(d.next_run_at, d.created_at)) as at
    from levels p
    cross join lateral (
      select j.next_run_at, j.created_at from faultline.open_jobs j
      where j.state = 'queued' and j.queue = p.name and j.priority = p.priority
      order by j.next_run_at limit 100
    ) d
    where d.next_run_at <= began
    group by p.name
  ),
  few as materialized (
    select f.name, c.*
    from waiting f
    cross join lateral (
      select
        count(*) as jobs,
        count(*) filter (where j.next_run_at <= began) as due
      from (
        select j.next_run_at from faultline.open_jobs j where j.state = 'queued' and j.queue = f.name limit few_max + 1
      ) j
    ) c
    where f.name is not null
  ),
  crowded as materialized (
    select f.name from few f where f.jobs > few_max
  ),
  bound (jobs) as materialized (
    select greatest(few_max, least(sample.exact_max, 2 * sample.exact_max::bigint / greatest(1, count(*)))) from crowded
  ),
  many as materialized (
    select f.name, c.*
    from crowded f
    cross join lateral (
      select
        count(*) as jobs,
        count(*) filter (where j.next_run_at <= began) as due
      from (
        select j.next_run_at from faultline.open_jobs j
        where j.state = 'queued' and j.queue = f.name
        limit (select b.jobs + 1 from bound b)
      ) j
    ) c
  ),
  -- Queues with jobs in groups, one index lookup for each; none where nobody uses groups.
  grouping (name) as (
    (select j.queue::text from faultline.open_jobs j where j.in_group order by j.queue limit 1)
    union all
    select (
      select j.queue::text from faultline.open_jobs j where j.in_group and j.queue > f.name order by j.queue limit 1
    )
    from grouping f
    where f.name is not null
  ),
  grouped as materialized (
    select f.name, c.jobs, o.at
    from grouping f
    cross join lateral (
      select count(*) as jobs
      from (
        select from faultline.open_jobs j where j.in_group and j.queue = f.name limit (select b.jobs + 1 from bound b)
      ) j
    ) c
    cross join lateral (
      select min(greatest(d.group_at, j.created_at)) as at
      from (
        select w.group_at, w.id
        from (
          select j.group_at, j.id from faultline.open_jobs j
          where j.in_group and j.queue = f.name
          limit (select b.jobs + 1 from bound b)
        ) w
        order by w.group_at limit 100
      ) d
      join faultline.open_jobs j on j.id = d.id
    ) o
    where f.name is not null
  ),
  queued as materialized (
    select
      f.name, f.jobs, least(f.jobs, f.due + coalesce(g.jobs, 0)) as due, false as estimated
    from few f
    left join grouped g on g.name = f.name
    where f.jobs <= few_max
    union all
    select m.name, m.jobs, least(m.jobs, m.due + coalesce(g.jobs, 0)), m.jobs > b.jobs
    from many m
    cross join bound b
    left join grouped g on g.name = m.name
  ),
  leased as materialized (
    select j.queue::text as name, count(*) as running
    from (
      select j.queue from faultline.open_jobs j
      where j.state = 'running' and j.lease_expires_at <= 'infinity'
      limit sample.exact_max::bigint + 1
    ) j
    group by j.queue
  ),
  ended as materialized (
    select j.queue::text as name, count(*) as failed
    from (
      select j.queue from faultline.open_jobs j
      where j.state in ('failed', 'cancelled') and j.state = 'failed' and j.finished_at <= 'infinity'
      limit sample.exact_max::bigint + 1
    ) j
    group by j.queue
  ),
  too_many as materialized (
    select
      exists (select from queued q where q.estimated) as queued,
      (select sum(l.running) from leased l) > sample.exact_max as running,
      (select sum(e.failed) from ended e) > sample.exact_max as failed
  ),
  drawn as materialized (
    select
      j.queue::text as name,
      round(count(*) filter (where j.state = 'queued' and (j.next_run_at <= began or j.in_group)) * 100 / percent)::bigint as due,
      round(count(*) filter (where j.state = 'queued' and j.next_run_at > began and j.in_group is not true) * 100 / percent)::bigint as delayed,
      round(count(*) filter (where j.state = 'running') * 100 / percent)::bigint as running,
      round(count(*) filter (where j.state = 'failed') * 100 / percent)::bigint as failed
    from faultline.open_jobs j
    -- Read no pages if every count is exact.
    tablesample system ((select case when m.queued or m.running or m.failed then percent else 0 end from too_many m))
      repeatable (0)
    group by j.queue
  ),
  known as (
    select f.name from tallied f
    where exists (select from faultline.tallies t where t.queue = f.name and t.minute > began - interval '1 day')
    union
    select f.name from sampled f
    cross join lateral (select * from faultline.samples s where s.queue = f.name order by s.minute desc limit 1) s
    where s.due + s.delayed + s.running + s.failed > 0
    union
    select q.name from queued q
    union
    select l.name from leased l
    union
    select e.name from ended e
    union
    select d.name from drawn d
  )
  insert into faultline.samples (queue, minute, sampled_at, due, delayed, running, failed, oldest_due_at, estimated)
  select
    k.name, date_trunc('minute', began), began,
    -- An estimate is never below what was counted.
    coalesce(greatest(q.due, case when q.estimated then d.due end), 0),
    coalesce(greatest(q.jobs - q.due, case when q.estimated then d.delayed end), 0),
    coalesce(greatest(l.running, case when m.running then d.running end), 0),
    coalesce(greatest(e.failed, case when m.failed then d.failed end), 0),
    least(o.at, w.at),
    array_remove(array[
      case when q.estimated then 'due' end,
      case when q.estimated then 'delayed' end,
      case when m.running then 'running' end,
      case when m.failed then 'failed' end
    ], null)
  from known k
  cross join too_many m
  left join queued q on q.name = k.name
  left join oldest o on o.name = k.name
  left join grouped w on w.name = k.name
  left join leased l on l.name = k.name
  left join ended e on e.name = k.name
  left join drawn d on d.name = k.name
  on conflict (queue, minute) do update
  set sampled_at = excluded.sampled_at,
      due = excluded.due,
      delayed = excluded.delayed,
      running = excluded.running,
      failed = excluded.failed,
      oldest_due_at = excluded.oldest_due_at,
      estimated = excluded.estimated;
  -- Restore a missing row: without it, every worker would count all the time.
  insert into faultline.sampling default values on conflict do nothing;
  update faultline.sampling l
  set sampled_at = began, took_seconds = extract(epoch from faultline.clock() - began);
  return true;
end
$$;
