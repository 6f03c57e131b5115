-- What became of the jobs that a job of a graph came after, in their order, for its call of kind `after`. `failed` has those that
-- had not succeeded when it was taken: see `collect_outcomes`. Null: as they stand now.
create or replace function faultline.came_after(call_id bigint, failed jsonb) returns table (
  name text,
  upstream_id uuid,
  task text,
  state text,
  result jsonb,
  error text
)
language plpgsql stable
as $$
#variable_conflict use_column
begin
  return query
    select
      coalesce(r.args -> 'names' ->> m.index, j.task), j.id, j.task, s.state,
      case when s.state = 'succeeded' then j.result end,
      case
        when came_after.failed is null then j.last_error
        else came_after.failed -> e.index::text ->> 'error'
      end
    from faultline.edges e
    -- Each looked up by itself: for a join, the planner may read all jobs.
    cross join lateral (
      select j.id, j.task, j.state, j.result, j.last_error from faultline.jobs j where j.id = e.job_id offset 0
    ) j
    cross join lateral (
      select case
        when came_after.failed is null then j.state
        else coalesce(came_after.failed -> e.index::text ->> 'state', 'succeeded')
      end as state
    ) s
    -- Its position in the graph: the root has the names.
    left join lateral (
      select m.index, o.job_id
      from faultline.edges m
      cross join lateral (
        select c.job_id from faultline.calls c where c.id = m.call_id and c.kind = 'children' and c.number = '0' offset 0
      ) o
      where m.job_id = e.job_id
      offset 0
    ) m on true
    left join lateral (select r.args from faultline.jobs r where r.id = m.job_id offset 0) r on true
    where e.call_id = came_after.call_id
    order by e.index;
end
$$;
