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
