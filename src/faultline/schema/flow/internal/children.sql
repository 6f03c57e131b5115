-- Children of a job: spawned in chunks, collected once, cancelled with their parent.

-- Read a chunk of the jobs that a call enqueues, and refuse what no call can have: see spawn. `jobs` comes back as JSON, and was
-- read closely if anything is unusual about it. `keyed`: one of them has a key of its own. `named`: one names a group.
create or replace function faultline.read_chunk(
  wanted faultline.calls,
  first_index integer,
  jobs text,
  at timestamptz,
  args_bytes_max integer,
  out document json,
  out size integer,
  out keyed boolean,
  out named boolean
)
language plpgsql stable
as $$
declare
  chunk_max constant integer := 1000;
  jobs_max constant integer := case wanted.kind when 'children' then 100000 else chunk_max end;
  -- What a client gives a job. With others the document is read more closely.
  fields constant text[] := array[
    'task', 'args', 'queue', 'priority', 'delay_seconds', 'run_at', 'max_attempts', 'lease_seconds', 'idempotency_key', 'id',
    'keep_args', 'trace', 'digest', 'expires_seconds', 'expires_at', 'group', 'unique'
  ];
  unclear boolean;
begin
  if wanted.kind is distinct from 'children' and wanted.kind is distinct from 'detached' then
    raise exception 'kind must be children or detached' using errcode = 'FL005';
  elsif wanted.total > jobs_max then
    raise exception 'job %: call %, "%", cannot have % jobs; % are the limit',
      wanted.job_id, wanted.number, wanted.name, wanted.total, jobs_max
      using errcode = 'FL007', hint = 'Nothing was enqueued. Give each child a part of the work, and let it have children of its own.';
  end if;
  begin
    -- As jsonb as well: what is only JSON cannot be compared with another submission, nor shown.
    select count(*), bool_or(jsonb_typeof(j) <> 'object' or j - fields <> '{}'),
      bool_or(j ->> 'idempotency_key' is not null or j ->> 'unique' is not null), bool_or(j ->> 'group' is not null)
    into size, unclear, keyed, named
    from jsonb_array_elements(jobs::jsonb) j;
  exception
    when data_exception or program_limit_exceeded then
      unclear := true;
  end;
  if unclear then
    -- It says which job is wrong, and why.
    document := faultline.read_jobs(jobs, at, args_bytes_max);
  else
    document := jobs::json;
  end if;
  if size > chunk_max
    or coalesce(wanted.total, -1) < 0
    or coalesce(first_index, -1) < 0
    or first_index + size > wanted.total
    or (size = 0 and wanted.total > 0)
  then
    raise exception 'job %: call %, "%": % jobs from % on are no chunk of %; a chunk has 1 to %',
      wanted.job_id, wanted.number, wanted.name, size, first_index, wanted.total, chunk_max
      using errcode = 'FL005', detail = 'Nothing of this submission was enqueued.';
  end if;
end
$$;

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

-- Write into the history of a job that it has enqueued this chunk of a call's jobs: see spawn. `known` are those that existed.
-- Before: the caller holds the lease, and the call has all earlier chunks.
create or replace function faultline.keep_chunk(
  wanted faultline.calls, first_index integer, ids uuid[], known uuid[], at timestamptz
) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  update faultline.calls c
  set spawned = c.spawned + cardinality(keep_chunk.ids), fencing_token = wanted.fencing_token
  where c.id = wanted.id;
  if not found then
    insert into faultline.calls (
      id, job_id, number, kind, name, digest, fencing_token, begun_at, policy, total, spawned, ended_at, outcome, result
    )
    overriding system value
    values (
      wanted.id, wanted.job_id, wanted.number, wanted.kind, wanted.name, wanted.digest, wanted.fencing_token, keep_chunk.at,
      wanted.policy, wanted.total, coalesce(cardinality(keep_chunk.ids), 0),
      case wanted.kind when 'detached' then keep_chunk.at end, case wanted.kind when 'detached' then 'done' end,
      case wanted.kind when 'detached' then to_jsonb(coalesce(keep_chunk.ids, '{}')) end
    );
  end if;
  if wanted.kind = 'children' then
    insert into faultline.edges (call_id, index, job_id)
    select wanted.id, keep_chunk.first_index + u.position - 1, u.id
    from unnest(keep_chunk.ids) with ordinality as u (id, position);
    if keep_chunk.known <> '{}' then
      perform faultline.refuse_cycle(wanted.job_id, keep_chunk.known);
      perform faultline.set_watched(keep_chunk.known);
    end if;
  end if;
  perform faultline.join_flow(wanted.job_id);
end
$$;

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

-- As same_call, for a call that enqueues jobs: their number must be the same too.
create or replace function faultline.same_spawn(known faultline.calls, wanted faultline.calls) returns void
language plpgsql immutable
as $$
begin
  perform faultline.same_call(known, wanted.kind, wanted.name, wanted.digest);
  if known.total <> wanted.total then
    raise exception 'job %: the program has changed: call %, % "%", had % jobs and has % now',
      known.job_id, known.number, known.kind, known.name, known.total, wanted.total
      using errcode = 'FL005', detail = 'program_changed',
        hint = 'Nothing was enqueued. Give it the same items each time: read them in a step.';
  end if;
end
$$;

-- What became of the jobs that a job of a graph came after, in their order, for its call of kind `after`. `failed` has those that
-- had not succeeded when it was taken: see `collect_outcomes`. Null: as they stand now.
create or replace function faultline.came_after(call_id bigint, failed jsonb) returns table (
  name text,
  upstream_id uuid,
  task text,
  state text,
  result jsonb,
  error text
)
language plpgsql stable
as $$
#variable_conflict use_column
begin
  return query
    select
      coalesce(r.args -> 'names' ->> m.index, j.task), j.id, j.task, s.state,
      case when s.state = 'succeeded' then j.result end,
      case
        when came_after.failed is null then j.last_error
        else came_after.failed -> e.index::text ->> 'error'
      end
    from faultline.edges e
    -- Each looked up by itself: for a join, the planner may read all jobs.
    cross join lateral (
      select j.id, j.task, j.state, j.result, j.last_error from faultline.jobs j where j.id = e.job_id offset 0
    ) j
    cross join lateral (
      select case
        when came_after.failed is null then j.state
        else coalesce(came_after.failed -> e.index::text ->> 'state', 'succeeded')
      end as state
    ) s
    -- Its position in the graph: the root has the names.
    left join lateral (
      select m.index, o.job_id
      from faultline.edges m
      cross join lateral (
        select c.job_id from faultline.calls c where c.id = m.call_id and c.kind = 'children' and c.number = '0' offset 0
      ) o
      where m.job_id = e.job_id
      offset 0
    ) m on true
    left join lateral (select r.args from faultline.jobs r where r.id = m.job_id offset 0) r on true
    where e.call_id = came_after.call_id
    order by e.index;
end
$$;

-- Make a job a member of a flow: of its own, if it has none. Returns the flow's id. Null: the job is not open.
-- Before: the caller has locked the job's row.
create or replace function faultline.join_flow(job_id uuid) returns uuid
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  update faultline.open_jobs j set flow_id = j.id where j.id = join_flow.job_id and j.flow_id is null;
  if found then
    insert into faultline.flows (id, begun_at) values (join_flow.job_id, faultline.clock()) on conflict do nothing;
    return join_flow.job_id;
  end if;
  return (select j.flow_id from faultline.open_jobs j where j.id = join_flow.job_id);
end
$$;

-- Give children the group of their parent, where they have none of their own. Not if the group keeps its order: the parent
-- holds the group's only permit while it waits for them. So a child in such a group of its parent, or of one that waits for
-- the parent, is refused (FL005): it would never run. `named`: whether one of them names a group.
create or replace function faultline.inherit_group(parent uuid, jobs json, named boolean) returns json
language plpgsql stable
as $$
declare
  job record;
  document json := inherit_group.jobs;
  above record;
begin
  select j.queue, j.group_key into job from faultline.open_jobs j where j.id = inherit_group.parent;
  if job.group_key is null and not inherit_group.named then
    return document;
  end if;
  if job.group_key is not null and not coalesce((faultline.group_limit(job.queue, job.group_key) ->> 'ordered')::boolean, false) then
    -- As text, from the first character to the last: the arguments are stored as they were sent.
    document := (
      select json_agg(case when c.value ->> 'group' is not null then c.value else (
        select json_object_agg(f.key, f.value)
        from (
          select f.key, f.value from json_each(c.value) f where f.key <> 'group'
          union all
          select 'group', to_json(job.group_key)
        ) f
      ) end order by c.nth)
      from json_array_elements(document) with ordinality as c (value, nth)
    );
  end if;
  with recursive waiting as (
    select j.id, j.queue, j.group_key, j.call_id, 1 as depth from faultline.open_jobs j where j.id = inherit_group.parent
    union all
    select p.id, p.queue, p.group_key, p.call_id, w.depth + 1
    from waiting w
    cross join lateral (select c.job_id from faultline.calls c where c.id = w.call_id offset 0) c
    cross join lateral (
      select j.id, j.queue, j.group_key, j.call_id from faultline.open_jobs j where j.id = c.job_id offset 0
    ) p
    -- Deeper than any program goes: a circle, as only foreign SQL makes it.
    where w.depth < 1000
  )
  select w.id, w.group_key into above
  from waiting w
  where w.group_key is not null
    and exists (
      select from json_array_elements(document) as c (value)
      where c.value ->> 'group' = w.group_key and coalesce(c.value ->> 'queue', 'default') = w.queue
    )
    and (faultline.group_limit(w.queue, w.group_key) ->> 'ordered')::boolean
  limit 1;
  if found then
    raise exception 'job %: a child in the group "%" of job % is refused: the group keeps its order, and would wait for itself',
      inherit_group.parent, above.group_key, above.id
      using errcode = 'FL005', hint = 'Nothing was enqueued. Give the child another group, or another queue.';
  end if;
  return document;
end
$$;

-- The next `most` children of this job, or of this one of its calls, after a position: their calls, indexes and ids.
create or replace function faultline.next_children(
  job_id uuid,
  call_id bigint,
  at_call bigint,
  at_index integer,
  most integer,
  out calls bigint[],
  out indexes integer[],
  out ids uuid[]
)
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  select array_agg(b.call_id), array_agg(b.index), array_agg(b.job_id) into calls, indexes, ids
  from (
    select n.call_id, n.index, n.job_id
    from (
      -- By the job only: with the id in the inner query, the planner may read all calls from there on.
      select c.id
      from (select c.id from faultline.calls c where c.job_id = next_children.job_id offset 0) c
      where c.id >= next_children.at_call
        and (next_children.call_id is null or c.id = next_children.call_id)
      order by c.id
    ) c
    cross join lateral (
      select e.call_id, e.index, e.job_id
      from faultline.edges e
      where e.call_id = c.id
        and e.index > case when c.id = next_children.at_call then next_children.at_index else -1 end
      order by e.index
      limit most
    ) n
    order by n.call_id, n.index
    limit most
  ) b;
end
$$;

-- The greatest index, up to `from_index` and above `above`, at which a job of this call is open. Null: there is none.
-- Downwards: the last job to be enqueued is nearly always the last to end.
create or replace function faultline.open_child(call_id bigint, from_index integer, above integer default -1) returns integer
language plpgsql volatile
set plan_cache_mode = force_generic_plan
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_sort = off
as $$
#variable_conflict use_column
begin
  return (
    select e.index
    from faultline.edges e
    -- By id only: with the state in the inner query, the planner may scan all queued jobs.
    cross join lateral (select j.state from faultline.open_jobs j where j.id = e.job_id offset 0) o
    where e.call_id = open_child.call_id
      and e.index <= open_child.from_index
      and e.index > open_child.above
      and o.state in ('queued', 'running')
    order by e.index desc
    limit 1
  );
end
$$;

-- Whether a job of this call has failed or was cancelled.
create or replace function faultline.has_failed(call_id bigint) returns boolean
language plpgsql volatile
set plan_cache_mode = force_generic_plan
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
begin
  return exists (
    select
    from faultline.edges e
    -- By id only, as in `open_child`.
    cross join lateral (select j.state from faultline.open_jobs j where j.id = e.job_id offset 0) o
    where e.call_id = has_failed.call_id and o.state in ('failed', 'cancelled')
  );
end
$$;

-- Raise FL005 if one of these jobs is the job itself, or waits for it, however indirectly: they would wait for each other.
-- Its callers plan for full tables.
create or replace function faultline.refuse_cycle(job_id uuid, targets uuid[]) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  cycle uuid;
begin
  with recursive waiting (id) as (
    select refuse_cycle.job_id
    union
    select c.job_id
    from waiting w
    -- Looked up one by one: in a plain join, the planner may begin with all calls.
    cross join lateral (select e.call_id from faultline.edges e where e.job_id = w.id offset 0) e
    cross join lateral (select c.job_id, c.ended_at from faultline.calls c where c.id = e.call_id offset 0) c
    where c.ended_at is null
  )
  select w.id into cycle from waiting w where w.id = any (refuse_cycle.targets) limit 1;
  if cycle = refuse_cycle.job_id then
    raise exception 'job % cannot wait for itself', refuse_cycle.job_id
      using errcode = 'FL005', hint = 'wait for another job, or give the child a key of its own';
  elsif found then
    raise exception 'job % cannot wait for job %, which waits for it', refuse_cycle.job_id, cycle
      using errcode = 'FL005', hint = 'they would wait for each other; return the result to the job that waits';
  end if;
end
$$;

-- Cancel those of these locked children that are open, and have theirs swept. Those who wait for them are nudged, and the workers
-- of those that run are notified. Returns which were cancelled, or null.
create or replace function faultline.cancel_children(
  calls bigint[], ids uuid[], locked uuid[], undo boolean, out cancelled uuid[]
)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  running uuid[];
  watched uuid[];
begin
  with live as materialized (
    select j.id, j.ctid, j.state, j.fencing_token, j.lease_owner, j.claimed_at, j.lease_expires_at, j.renewals, j.watched
    from unnest(calls, ids) as u (call_id, job_id)
    join faultline.open_jobs j on j.id = any (array[u.job_id])
    where j.id = any (locked) and j.state in ('queued', 'running') and j.call_id = u.call_id
      and not exists (
        select from faultline.calls c where c.job_id = any (array[j.id]) and c.kind = 'saga' and c.outcome = 'failed'
      )
  ),
  ended as (
    update faultline.open_jobs j
    set state = 'cancelled',
        finished_at = faultline.clock(),
        lease_owner = null,
        lease_expires_at = null,
        suspended = null,
        last_error = faultline.swept_error()
    from live l
    where j.id = any (array[l.id])
    returning l.id, l.state as was, l.fencing_token, l.lease_owner, l.claimed_at, l.lease_expires_at, l.renewals, l.watched
  ),
  recorded as (
    insert into faultline.journal (at, job_id, event, fencing_token, owner, detail)
    select
      faultline.clock(), e.id, 'cancelled', e.fencing_token, e.lease_owner,
      jsonb_build_object('was', e.was, 'reason', 'parent') || case e.was
        when 'running' then faultline.lease_details(e.claimed_at, e.lease_expires_at, e.renewals) else '{}'
      end
    from ended e
    order by e.id
  ),
  below as (
    insert into faultline.sweeps (job_id, reason)
    select e.id, case when cancel_children.undo then 'undo' end
    from ended e
    where exists (select from faultline.calls c where c.job_id = any (array[e.id]) and c.kind = 'children')
  )
  select
    array_agg(e.id) filter (where e.was = 'running'), array_agg(e.id) filter (where e.watched),
    array_agg(e.id)
  into running, watched, cancelled
  from ended e;
  if watched is not null then
    perform faultline.nudge_waiters(null, watched, true);
  end if;
  if running is not null and coalesce(current_setting('faultline.notify', true), '') <> 'off' then
    perform pg_notify('faultline', json_build_object('cancelled', r.id)::text) from unnest(running) as r (id);
  end if;
end
$$;

-- Cancel the open children of this job, or of this one of its calls, among the next `max_edges` after a position. A child whose
-- saga has failed is left alone: it only undoes, and ends by itself.
-- With `undo`, those that have begun sagas are queued again to undo them: nobody will go on with them. So are those that an
-- earlier sweep has cancelled.
-- Returns where the bite ended, how many edges it read, whether it was the last, and the first child that was locked.
create or replace function faultline.cancel_children_batch(
  job_id uuid,
  call_id bigint,
  inout at_call bigint,
  inout at_index integer,
  max_edges integer,
  undo boolean,
  out edges integer,
  out is_last boolean,
  out missed_call bigint,
  out missed_index integer
)
language plpgsql volatile
set plan_cache_mode = force_generic_plan
set jit = off
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  most constant integer := greatest(cancel_children_batch.max_edges, 1);
  children record;
  locked uuid[];
  cancelled uuid[];
begin
  children := faultline.next_children(
    cancel_children_batch.job_id, cancel_children_batch.call_id, cancel_children_batch.at_call, cancel_children_batch.at_index, most
  );
  edges := coalesce(cardinality(children.ids), 0);
  is_last := edges < most;
  if edges = 0 then
    return;
  end if;
  at_call := children.calls[edges];
  at_index := children.indexes[edges];
  locked := array(
    select j.id from faultline.open_jobs j where j.id = any (children.ids) for update skip locked
  );
  cancelled := faultline.cancel_children(children.calls, children.ids, locked, cancel_children_batch.undo);
  if cancel_children_batch.undo then
    perform faultline.undo_children(children.calls, children.ids, locked, cancelled);
  end if;
  -- In a new statement: those that another session has locked. One that has ended may be about to be retried.
  select u.call_id, u.index into missed_call, missed_index
  from unnest(children.calls, children.indexes, children.ids) with ordinality as u (call_id, index, job_id, position)
  cross join lateral (
    select j.call_id from faultline.open_jobs j where j.id = u.job_id offset 0
  ) o
  where o.call_id = u.call_id and u.job_id <> all (locked)
  order by u.position
  limit 1;
end
$$;

-- Cancel a suspended job that can never go on. Before: the caller has locked its row, and the job is queued.
-- After: cancelled; those who wait for it are nudged, and its open children are swept.
create or replace function faultline.cancel_waiting(job_id uuid, error text, why jsonb) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  job record;
begin
  update faultline.open_jobs j
  set state = 'cancelled',
      finished_at = faultline.clock(),
      suspended = null,
      last_error = cancel_waiting.error
  where j.id = cancel_waiting.job_id
  returning j.id, j.fencing_token into job;
  insert into faultline.journal (at, job_id, event, fencing_token, detail)
  values (faultline.clock(), job.id, 'cancelled', job.fencing_token, jsonb_build_object('was', 'queued') || why);
  perform faultline.end_badly(array[job.id]);
end
$$;

-- Whether the open children of this job, or of this one of its calls, are to be cancelled: the job has ended badly or only
-- undoes, or the call was closed. Before: the caller has locked the job's row, unless it asks for a call, which never opens again.
create or replace function faultline.is_swept(job_id uuid, call_id bigint) returns boolean
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  if is_swept.call_id is not null then
    return exists (select from faultline.calls c where c.id = is_swept.call_id and c.outcome = 'closed');
  end if;
  return exists (
    select
    from faultline.open_jobs j
    where j.id = is_swept.job_id
      and (j.state in ('failed', 'cancelled') or exists (
        select from faultline.calls c where c.job_id = j.id and c.kind = 'saga' and c.outcome = 'failed'
      ))
  );
end
$$;

-- The error of a job that was cancelled because its parent has ended badly. A retry of the parent queues it again.
create or replace function faultline.swept_error() returns text
language sql immutable parallel safe
return 'cancelled: its parent has ended';
