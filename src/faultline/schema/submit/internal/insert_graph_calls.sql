-- Insert what the jobs of a graph wait for: the root for all, each for those that it names. `ids` are the jobs in their order.
create or replace function faultline.insert_graph_calls(graph jsonb, root_id uuid, root_call bigint, ids uuid[], at timestamptz)
returns void
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  insert into faultline.calls (
    id, job_id, number, kind, name, fencing_token, begun_at, awaited, policy, total, spawned
  )
  overriding system value
  values (root_call, root_id, '0', 'children', 'jobs', 0, at, true, 'raise', cardinality(ids), cardinality(ids));
  with nodes as materialized (select * from faultline.graph_nodes(graph)),
  comes as materialized (
    insert into faultline.calls (job_id, number, kind, name, fencing_token, begun_at, awaited, policy, total, spawned)
    select
      ids[n.nth], '0', 'after', 'after', 0, at, true, coalesce(n.value ->> 'if_failed', 'cancel'),
      jsonb_array_length(n.value -> 'after'), jsonb_array_length(n.value -> 'after')
    from nodes n
    where jsonb_array_length(nullif(n.value -> 'after', 'null')) > 0
    returning id, job_id
  ),
  members as materialized (
    select u.id, u.nth, n.name, n.value -> 'after' as after
    from unnest(ids) with ordinality as u (id, nth)
    join nodes n on n.nth = u.nth
  )
  insert into faultline.edges (call_id, index, job_id)
  select root_call, p.nth - 1, p.id from members p
  union all
  select c.id, a.nth - 1, t.id
  from comes c
  join members p on p.id = c.job_id
  cross join lateral jsonb_array_elements_text(p.after) with ordinality as a (name, nth)
  join members t on t.name = a.name;
end
$$;
