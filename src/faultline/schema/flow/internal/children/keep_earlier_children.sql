-- Keep the jobs that these jobs have called in their flows, as jobs of call '0.0' of each, before its history is deleted. `positions`
-- says where the token of each stands in `tokens`.
create or replace function faultline.keep_earlier_children(ids uuid[], positions bigint[], tokens bigint[]) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  -- Whoever prunes the flow finds its jobs by the edges of calls.
  insert into faultline.calls (job_id, number, kind, name, fencing_token, begun_at, ended_at, outcome)
  select i.id, '0.0', 'children', 'earlier rounds', tokens[i.position], faultline.clock(), faultline.clock(), 'closed'
  from unnest(ids, positions) as i (id, position)
  -- One by one, here and below: in a plain join, the planner may begin with all calls, or all edges.
  where (
    select c.id
    from faultline.calls c
    cross join lateral (select from faultline.edges e where e.call_id = c.id limit 1) e
    where c.job_id = i.id and c.kind = 'children' and c.number <> '0.0'
    limit 1
  ) is not null
  on conflict (job_id, number) do nothing;
  insert into faultline.edges (call_id, index, job_id)
  select
    k.id,
    coalesce((select max(x.index) from faultline.edges x where x.call_id = k.id), -1)
    + row_number() over (partition by k.id order by e.call_id, e.index),
    e.job_id
  from unnest(ids) as i (id)
  cross join lateral (select k.id from faultline.calls k where k.job_id = i.id and k.number = '0.0' offset 0) k
  cross join lateral (
    select c.id from faultline.calls c where c.job_id = i.id and c.kind = 'children' and c.number <> '0.0' offset 0
  ) c
  cross join lateral (select e.call_id, e.index, e.job_id from faultline.edges e where e.call_id = c.id offset 0) e;
end
$$;
