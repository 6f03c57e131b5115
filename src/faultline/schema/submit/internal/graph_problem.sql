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
