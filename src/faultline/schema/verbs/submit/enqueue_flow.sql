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
  never constant timestamptz := '9999-01-01Z';
  limits constant faultline.settings := (select s from faultline.settings s);
  graph jsonb;
  document json;
  problem text;
  root record;
  root_call bigint;
  ids uuid[];
  queues text[];
  lowest_priority integer;
  grouped boolean;
begin
  perform faultline.read_committed('enqueue_flow');
  begin
    graph := enqueue_flow.nodes::jsonb;
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
  -- By joins, here and below: to look each name up in the others would take minutes for the largest graphs.
  with nodes as materialized (
    select n.nth - 1 as nth, n.value, n.value ->> 'name' as name
    from jsonb_array_elements(graph) with ordinality as n (value, nth)
    where n.nth > 1
  ),
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
      from jsonb_array_elements(graph) as n (value)
      where n.value ? 'if_failed' and coalesce(n.value ->> 'if_failed', '') not in ('cancel', 'run')
      limit 1
    ),
    (
      select format('"%s" has a key or an id of its own; give an idempotency_key to the whole graph', n.value ->> 'name')
      from jsonb_array_elements(graph) with ordinality as n (value, nth)
      where n.nth > 1 and (n.value ->> 'idempotency_key' is not null or n.value ->> 'id' is not null)
      limit 1
    ),
    (
      select format('"%s" is unique; give an idempotency_key to the whole graph', coalesce(n.value ->> 'name', 'its root'))
      from jsonb_array_elements(graph) as n (value)
      where n.value ->> 'unique' is not null
      limit 1
    ),
    (
      select format('"%s" comes after others and has a time of its own', n.value ->> 'name')
      from jsonb_array_elements(graph) as n (value)
      where n.value ? 'after' and jsonb_array_length(n.value -> 'after') > 0
        and (n.value ->> 'delay_seconds' is not null or n.value ->> 'run_at' is not null)
      limit 1
    )
  ) into problem;
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
  set suspended = true, next_run_at = never, in_group = null, group_at = null, flow_id = j.id
  where j.id = root.id;
  insert into faultline.flows (id, begun_at) values (root.id, at);
  with nodes as materialized (
    select n.nth - 1 as nth, n.value, n.value ->> 'name' as name
    from jsonb_array_elements(graph) with ordinality as n (value, nth)
    where n.nth > 1
  ),
  inserted as (
    insert into faultline.open_jobs (
      id, task, args, queue, priority, next_run_at, max_attempts, lease_seconds, keep_args, idempotency_key, trace, created_at,
      expires_at, group_key, in_group, group_at, flow_id, call_id, watched, suspended
    )
    select
      p.id, p.task, p.args, p.queue, p.priority, case when w.waits then never else p.next_run_at end, p.max_attempts,
      p.lease_seconds, p.keep_args, p.idempotency_key, p.trace, p.created_at, p.expires_at,
      p.group_key, case when not w.waits then p.in_group end, case when not w.waits then p.group_at end, root.id, root_call,
      case when t.name is not null then true end, case when w.waits then true end
    from (
      select p.*, row_number() over () as nth
      from faultline.parse_new_jobs((
        select json_agg(n.value order by n.nth)
        from json_array_elements(document) with ordinality as n (value, nth)
        where n.nth > 1
      ), at, limits.args_bytes_max) p
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
  insert into faultline.calls (
    id, job_id, number, kind, name, fencing_token, begun_at, awaited, policy, total, spawned
  )
  overriding system value
  values (root_call, root.id, '0', 'children', 'jobs', 0, at, true, 'raise', cardinality(ids), cardinality(ids));
  with nodes as materialized (
    select n.nth - 1 as nth, n.value, n.value ->> 'name' as name
    from jsonb_array_elements(graph) with ordinality as n (value, nth)
    where n.nth > 1
  ),
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
  perform faultline.wake_new(
    queues, lowest_priority, case when enqueue_flow.appears_late then transaction_timestamp() else at end, at, cardinality(ids)
  );
  return query
    select 1::bigint, root.id, true
    union all
    select u.nth + 1, u.id, true from unnest(ids) with ordinality as u (id, nth)
    order by 1;
end
$$;
