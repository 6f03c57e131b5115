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
