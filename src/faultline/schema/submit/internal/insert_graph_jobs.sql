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
