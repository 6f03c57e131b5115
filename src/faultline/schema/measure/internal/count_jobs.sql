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
