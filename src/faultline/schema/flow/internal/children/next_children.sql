-- The next `most` children of this job, or of this one of its calls, after a position: their calls, indexes and ids.
create or replace function faultline.next_children(
  job_id uuid,
  call_id bigint,
  at_call bigint,
  at_index integer,
  most integer,
  out calls bigint[],
  out indexes integer[],
  out ids uuid[]
)
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  select array_agg(b.call_id), array_agg(b.index), array_agg(b.job_id) into calls, indexes, ids
  from (
    select n.call_id, n.index, n.job_id
    from (
      -- By the job only: with the id in the inner query, the planner may read all calls from there on.
      select c.id
      from (select c.id from faultline.calls c where c.job_id = next_children.job_id offset 0) c
      where c.id >= next_children.at_call
        and (next_children.call_id is null or c.id = next_children.call_id)
      order by c.id
    ) c
    cross join lateral (
      select e.call_id, e.index, e.job_id
      from faultline.edges e
      where e.call_id = c.id
        and e.index > case when c.id = next_children.at_call then next_children.at_index else -1 end
      order by e.index
      limit most
    ) n
    order by n.call_id, n.index
    limit most
  ) b;
end
$$;
