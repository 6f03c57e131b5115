-- Insert the jobs of a chunk, or find those that exist under their keys: see spawn. Children belong to the flow of their parent,
-- and know the call, which may not be written yet. Returns all ids in their order, those that were `known`, and the rest for
-- `wake_new`. `keyed`: one of them may have a key. `named`: one may name a group.
create or replace function faultline.insert_chunk(
  wanted faultline.calls,
  jobs json,
  keyed boolean,
  named boolean,
  at timestamptz,
  args_bytes_max integer,
  out ids uuid[],
  out known uuid[],
  out queues text[],
  out lowest_priority integer,
  out lowest_run_at timestamptz
)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  document json := insert_chunk.jobs;
  flow uuid;
  news boolean[];
  grouped boolean;
begin
  known := '{}';
  if wanted.kind = 'children' then
    select coalesce(j.flow_id, j.id) into flow from faultline.open_jobs j where j.id = wanted.job_id;
    document := faultline.inherit_group(wanted.job_id, document, insert_chunk.named);
  end if;
  if insert_chunk.keyed then
    select k.ids, k.news, k.lowest_priority, k.lowest_run_at into ids, news, lowest_priority, lowest_run_at
    from faultline.insert_or_find_jobs(document, insert_chunk.at, insert_chunk.args_bytes_max) k;
    queues := array(select distinct coalesce(j ->> 'queue', 'default') from json_array_elements(document) j);
    known := array(select u.id from unnest(ids, news) as u (id, new) where not u.new);
    if wanted.kind = 'children' then
      update faultline.open_jobs j set flow_id = flow, call_id = wanted.id
      from unnest(ids, news) as u (id, new)
      where u.new and j.id = any (array[u.id]);
    end if;
    return;
  end if;
  with inserted as (
    insert into faultline.open_jobs (
      id, task, args, queue, priority, next_run_at, max_attempts, lease_seconds, keep_args, idempotency_key, trace, created_at,
      expires_at, group_key, in_group, group_at, unique_key, flow_id, call_id
    )
    select p.*, flow, case wanted.kind when 'children' then wanted.id end
    from faultline.parse_new_jobs(document, insert_chunk.at, insert_chunk.args_bytes_max) p
    returning id, queue, priority, coalesce(group_at, next_run_at) as run_at, in_group
  )
  -- In the order in which they were read.
  select array_agg(i.id), array_agg(distinct i.queue), min(i.priority), min(i.run_at), bool_or(i.in_group)
  into ids, queues, lowest_priority, lowest_run_at, grouped
  from inserted i;
  if grouped then
    perform faultline.insert_arrival_events(ids);
  end if;
  if exists (select from faultline.ledger f where f.job_id = any (ids)) then
    raise unique_violation;
  end if;
end
$$;
