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
