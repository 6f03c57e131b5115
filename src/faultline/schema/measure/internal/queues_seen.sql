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
