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
