-- Enqueue the jobs of a graph, all or none, in the caller's transaction. Returns one row per job in the order given.
-- `nodes` is the text of a JSON array. Its first element is the root: a job as for `enqueue_many`, which waits for all others as
-- for its children and then runs. Its idempotency_key, if it has one, is that of the whole: the second enqueue of the same graph
-- gives the jobs of the first. The others are jobs too, each with a `name` and, where wanted, with
--   after      the names of jobs before it in the array: it waits until all of them have ended
--   if_failed  what becomes of it if one of these fails or is cancelled. cancel (default): it is cancelled. run: it runs
-- A job can only come after jobs that stand before it, so a cycle cannot be written down: FL005.
-- After: jobs that come after none are queued and due; all others, and the root, are suspended.
create or replace function faultline.enqueue_flow(nodes text, appears_late boolean default false) returns table (
  "position" bigint,
  job_id uuid,
  created boolean
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  at constant timestamptz := faultline.clock();
  limits constant faultline.settings := (select s from faultline.settings s);
  graph jsonb;
  document json;
  problem text;
  root record;
  root_call bigint;
  made record;
begin
  perform faultline.read_committed('enqueue_flow');
  graph := faultline.read_graph(enqueue_flow.nodes);
  problem := faultline.graph_problem(graph);
  if problem is not null then
    raise exception 'the graph is refused: %', problem using errcode = 'FL005', detail = 'Nothing was enqueued.';
  end if;
  perform faultline.require_synchronous_commit();
  -- As text, from the first character to the last: the arguments are stored as they were sent.
  select json_agg((
    select json_object_agg(f.key, f.value)
    from json_each(n.value) f
    where f.key not in ('name', 'after', 'if_failed')
  ) order by n.nth) into document
  from json_array_elements(enqueue_flow.nodes::json) with ordinality as n (value, nth);
  document := faultline.read_jobs(document::text, at, limits.args_bytes_max);
  select k.ids[1] as id, k.news[1] as is_new into root
  from faultline.insert_or_find_jobs(
    json_build_array(((document -> 0)::jsonb || jsonb_build_object('digest', md5(graph::text)))::json), at, limits.args_bytes_max
  ) k;
  if not root.is_new then
    return query
      select 1::bigint, root.id, false
      union all
      select e.index + 2::bigint, e.job_id, false
      from faultline.calls c
      join faultline.edges e on e.call_id = c.id
      where c.job_id = root.id and c.number = '0'
      order by 1;
    return;
  end if;
  root_call := nextval(pg_get_serial_sequence('faultline.calls', 'id'));
  update faultline.open_jobs j
  set suspended = true, next_run_at = '9999-01-01Z', in_group = null, group_at = null, flow_id = j.id
  where j.id = root.id;
  insert into faultline.flows (id, begun_at) values (root.id, at);
  made := faultline.insert_graph_jobs(graph, document, root.id, root_call, at, limits.args_bytes_max);
  perform faultline.insert_graph_calls(graph, root.id, root_call, made.ids, at);
  perform faultline.wake_new(
    made.queues, made.lowest_priority, case when enqueue_flow.appears_late then transaction_timestamp() else at end, at,
    cardinality(made.ids)
  );
  return query
    select 1::bigint, root.id, true
    union all
    select u.nth + 1, u.id, true from unnest(made.ids) with ordinality as u (id, nth)
    order by 1;
end
$$;
