-- Graphs of jobs: read, judged and inserted as a whole.

-- The graph of a submission, from its text: a JSON array of at most 10,001 objects. FL005, or FL007, if it is none.
create or replace function faultline.read_graph(nodes text) returns jsonb
language plpgsql immutable
as $$
declare
  graph jsonb;
begin
  begin
    graph := read_graph.nodes::jsonb;
    if jsonb_typeof(graph) is distinct from 'array' or jsonb_array_length(graph) < 2
      or exists (select from jsonb_array_elements(graph) as n (value) where jsonb_typeof(n.value) <> 'object')
    then
      raise exception 'a graph must be a JSON array of objects: its root, and at least one job' using errcode = 'FL005';
    end if;
  exception
    when data_exception or program_limit_exceeded then
      raise exception 'the graph is refused: %', sqlerrm using errcode = 'FL005', detail = 'Nothing was enqueued.';
  end;
  if jsonb_array_length(graph) > 10001 then
    raise exception 'a graph cannot have % jobs; 10000 are the limit', jsonb_array_length(graph) - 1
      using errcode = 'FL007', hint = 'Nothing was enqueued. Let a job of the graph map over the items instead.';
  end if;
  return graph;
end
$$;

-- The jobs of a graph without its root, numbered from 1.
create or replace function faultline.graph_nodes(graph jsonb) returns table (
  nth bigint,
  value jsonb,
  name text
)
language sql immutable
as $$
  select n.nth - 1, n.value, n.value ->> 'name'
  from jsonb_array_elements($1) with ordinality as n (value, nth)
  where n.nth > 1;
$$;

-- What is wrong with the jobs of a graph, for a message; null: nothing.
create or replace function faultline.graph_problem(graph jsonb) returns text
language sql immutable
as $$
  -- By joins: to look each name up in the others would take minutes for the largest graphs.
  with nodes as materialized (select * from faultline.graph_nodes($1)),
  arrows as materialized (
    select n.nth, n.name as node, a.name
    from nodes n
    cross join lateral jsonb_array_elements_text(
      case jsonb_typeof(n.value -> 'after') when 'array' then n.value -> 'after' when 'null' then '[]' else '[null]' end
    ) as a (name)
    where n.value ? 'after'
  )
  select coalesce(
    (select format('a job of the graph has no name') from nodes n where coalesce(n.name, '') = '' limit 1),
    (select format('two jobs of the graph are named "%s"', n.name) from nodes n group by n.name having count(*) > 1 limit 1),
    (
      select case
        when a.name is null then format('"after" of "%s" must be an array of names', a.node)
        when n.name is null then format('"%s" comes after "%s", which is not in the graph', a.node, a.name)
        else format('"%s" comes after "%s", which does not stand before it: a cycle, or the wrong order', a.node, a.name)
      end
      from arrows a
      left join nodes n on n.name = a.name
      where n.name is null or n.nth >= a.nth
      limit 1
    ),
    (
      select format('"%s" comes after "%s" twice', a.node, a.name)
      from arrows a
      group by a.node, a.name
      having count(*) > 1
      limit 1
    ),
    (
      select format('"if_failed" of "%s" must be "cancel" or "run"', n.value ->> 'name')
      from jsonb_array_elements($1) as n (value)
      where n.value ? 'if_failed' and coalesce(n.value ->> 'if_failed', '') not in ('cancel', 'run')
      limit 1
    ),
    (
      select format('"%s" has a key or an id of its own; give an idempotency_key to the whole graph', n.value ->> 'name')
      from jsonb_array_elements($1) with ordinality as n (value, nth)
      where n.nth > 1 and (n.value ->> 'idempotency_key' is not null or n.value ->> 'id' is not null)
      limit 1
    ),
    (
      select format('"%s" is unique; give an idempotency_key to the whole graph', coalesce(n.value ->> 'name', 'its root'))
      from jsonb_array_elements($1) as n (value)
      where n.value ->> 'unique' is not null
      limit 1
    ),
    (
      select format('"%s" comes after others and has a time of its own', n.value ->> 'name')
      from jsonb_array_elements($1) as n (value)
      where n.value ? 'after' and jsonb_array_length(n.value -> 'after') > 0
        and (n.value ->> 'delay_seconds' is not null or n.value ->> 'run_at' is not null)
      limit 1
    )
  );
$$;

-- Insert the jobs of a graph, without its root, from the document that `read_jobs` made of it. Returns their ids in their order, and
-- of those that come after none: their queues, and the lowest priority.
create or replace function faultline.insert_graph_jobs(
  graph jsonb,
  document json,
  root_id uuid,
  root_call bigint,
  at timestamptz,
  args_bytes_max integer,
  out ids uuid[],
  out queues text[],
  out lowest_priority integer
)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  grouped boolean;
begin
  with nodes as materialized (select * from faultline.graph_nodes(graph)),
  inserted as (
    insert into faultline.open_jobs (
      id, task, args, queue, priority, next_run_at, max_attempts, lease_seconds, keep_args, idempotency_key, trace, created_at,
      expires_at, group_key, in_group, group_at, flow_id, call_id, watched, suspended
    )
    select
      p.id, p.task, p.args, p.queue, p.priority, case when w.waits then '9999-01-01Z' else p.next_run_at end, p.max_attempts,
      p.lease_seconds, p.keep_args, p.idempotency_key, p.trace, p.created_at, p.expires_at,
      p.group_key, case when not w.waits then p.in_group end, case when not w.waits then p.group_at end, root_id, root_call,
      case when t.name is not null then true end, case when w.waits then true end
    from (
      select p.*, row_number() over () as nth
      from faultline.parse_new_jobs((
        select json_agg(n.value order by n.nth)
        from json_array_elements(document) with ordinality as n (value, nth)
        where n.nth > 1
      ), at, args_bytes_max) p
    ) p
    join nodes n on n.nth = p.nth
    cross join lateral (select coalesce(jsonb_array_length(nullif(n.value -> 'after', 'null')), 0) > 0 as waits) w
    -- Those that others come after.
    left join (
      select distinct a.name
      from nodes o
      cross join lateral jsonb_array_elements_text(nullif(o.value -> 'after', 'null')) as a (name)
    ) t on t.name = n.name
    order by p.nth
    returning id, queue, priority, suspended, in_group
  )
  -- In the order in which they were read.
  select
    array_agg(i.id), array_agg(distinct i.queue) filter (where i.suspended is null),
    min(i.priority) filter (where i.suspended is null), bool_or(i.in_group)
  into ids, queues, lowest_priority, grouped
  from inserted i;
  if grouped then
    perform faultline.insert_arrival_events(ids);
  end if;
end
$$;

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
