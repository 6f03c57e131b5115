-- Enqueue jobs for a call of a running job, once: sent again, or by a later attempt, nothing is new. Returns the id of the call and
-- the ids of detached jobs, or why the lease is lost; then nothing was written.
-- `jobs` is the text of a JSON array as for `enqueue_many`, of at most 1,000: more come in chunks, each once, in their order.
-- `total` is how many there are in all, `first_index` the index of the first of this chunk.
-- Before: the caller holds the lease. After: the jobs are queued, and the call knows each by its index.
--   children  end with their parent if it ends badly, and the call waits for all of them. One whose idempotency key exists, or for
--             which a unique job stands in, is that
--             job: it is waited for, and belongs to itself.
--   detached  are nobody's. The call has ended when they are enqueued, with their ids as its result.
-- The jobs are inserted first and the lease is compared last: keys before rows, as everywhere.
create or replace function faultline.spawn(
  job_id uuid,
  fencing_token bigint,
  owner text,
  number text,
  kind text,
  name text,
  digest text,
  policy text,
  total integer,
  first_index integer,
  jobs text
) returns table (
  call_id bigint,
  detached jsonb,
  reason text,
  current_token bigint
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set jit = off
set max_parallel_workers_per_gather = 0
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  chunk_max constant integer := 1000;
  jobs_max constant integer := case spawn.kind when 'children' then 100000 else chunk_max end;
  at constant timestamptz := faultline.clock();
  limits constant faultline.settings := (select s from faultline.settings s);
  -- What a client gives a job. With others the document is read more closely.
  fields constant text[] := array[
    'task', 'args', 'queue', 'priority', 'delay_seconds', 'run_at', 'max_attempts', 'lease_seconds', 'idempotency_key', 'id',
    'keep_args', 'trace', 'digest', 'expires_seconds', 'expires_at', 'group', 'unique'
  ];
  document json;
  size integer;
  unclear boolean;
  keyed boolean;
  named boolean;
  call faultline.calls;
  new_call bigint;
  flow uuid;
  ids uuid[];
  news boolean[];
  known uuid[];
  queues text[];
  lowest_priority integer;
  lowest_run_at timestamptz;
  grouped boolean;
begin
  perform faultline.read_committed('spawn');
  if spawn.kind is distinct from 'children' and spawn.kind is distinct from 'detached' then
    raise exception 'kind must be children or detached' using errcode = 'FL005';
  elsif spawn.total > jobs_max then
    raise exception 'job %: call %, "%", cannot have % jobs; % are the limit',
      spawn.job_id, spawn.number, spawn.name, spawn.total, jobs_max
      using errcode = 'FL007', hint = 'Nothing was enqueued. Give each child a part of the work, and let it have children of its own.';
  end if;
  begin
    -- As jsonb as well: what is only JSON cannot be compared with another submission, nor shown.
    select count(*), bool_or(jsonb_typeof(j) <> 'object' or j - fields <> '{}'),
      bool_or(j ->> 'idempotency_key' is not null or j ->> 'unique' is not null), bool_or(j ->> 'group' is not null)
    into size, unclear, keyed, named
    from jsonb_array_elements(spawn.jobs::jsonb) j;
  exception
    when data_exception or program_limit_exceeded then
      unclear := true;
  end;
  if unclear then
    -- It says which job is wrong, and why.
    document := faultline.read_jobs(spawn.jobs, at, limits.args_bytes_max);
  else
    document := spawn.jobs::json;
  end if;
  if size > chunk_max
    or coalesce(spawn.total, -1) < 0
    or coalesce(spawn.first_index, -1) < 0
    or spawn.first_index + size > spawn.total
    or (size = 0 and spawn.total > 0)
  then
    raise exception 'job %: call %, "%": % jobs from % on are no chunk of %; a chunk has 1 to %',
      spawn.job_id, spawn.number, spawn.name, size, spawn.first_index, spawn.total, chunk_max
      using errcode = 'FL005', detail = 'Nothing of this submission was enqueued.';
  end if;
  perform faultline.require_synchronous_commit();
  select c.* into call from faultline.calls c where c.job_id = spawn.job_id and c.number = spawn.number;
  if call.id is null or (call.ended_at is null and call.spawned < spawn.first_index + size) then
    begin
      -- Its jobs know the call before it is written.
      new_call := coalesce(call.id, nextval(pg_get_serial_sequence('faultline.calls', 'id')));
      if spawn.kind = 'children' then
        select coalesce(j.flow_id, j.id) into flow from faultline.open_jobs j where j.id = spawn.job_id;
        document := faultline.inherit_group(spawn.job_id, document, named is distinct from false);
      end if;
      if keyed then
        select k.ids, k.news, k.lowest_priority, k.lowest_run_at into ids, news, lowest_priority, lowest_run_at
        from faultline.insert_or_find_jobs(document, at, limits.args_bytes_max) k;
        queues := array(select distinct coalesce(j ->> 'queue', 'default') from json_array_elements(document) j);
        known := array(select u.id from unnest(ids, news) as u (id, new) where not u.new);
        if spawn.kind = 'children' then
          update faultline.open_jobs j set flow_id = flow, call_id = new_call
          from unnest(ids, news) as u (id, new)
          where u.new and j.id = any (array[u.id]);
        end if;
      else
        with inserted as (
          insert into faultline.open_jobs (
            id, task, args, queue, priority, next_run_at, max_attempts, lease_seconds, keep_args, idempotency_key, trace, created_at,
            expires_at, group_key, in_group, group_at, unique_key, flow_id, call_id
          )
          select p.*, flow, case spawn.kind when 'children' then new_call end
          from faultline.parse_new_jobs(document, at, limits.args_bytes_max) p
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
      end if;
      if not faultline.lock_lease(spawn.job_id, spawn.fencing_token, spawn.owner) then
        raise exception 'the lease is lost' using errcode = 'FL099';
      end if;
      -- In a new statement, after the lock: no other session writes calls of this job now.
      select c.* into call from faultline.calls c where c.job_id = spawn.job_id and c.number = spawn.number;
      if call.id is not null then
        perform faultline.same_spawn(call, spawn.kind, spawn.name, spawn.digest, spawn.total);
      end if;
      if call.ended_at is not null or call.spawned >= spawn.first_index + size then
        raise exception 'these jobs exist' using errcode = 'FL099';
      elsif coalesce(call.spawned, 0) <> spawn.first_index then
        raise exception 'job %: call %, "%", has % of its jobs and cannot go on with number %',
          spawn.job_id, spawn.number, spawn.name, coalesce(call.spawned, 0), spawn.first_index
          using errcode = 'FL005', hint = 'Nothing was enqueued. Send the chunks in their order.';
      end if;
      if call.id is null then
        insert into faultline.calls (
          id, job_id, number, kind, name, digest, fencing_token, begun_at, policy, total, spawned, ended_at, outcome, result
        )
        overriding system value
        values (
          new_call, spawn.job_id, spawn.number, spawn.kind, spawn.name, spawn.digest, spawn.fencing_token, at, spawn.policy,
          spawn.total, size, case spawn.kind when 'detached' then at end, case spawn.kind when 'detached' then 'done' end,
          case spawn.kind when 'detached' then to_jsonb(coalesce(ids, '{}')) end
        );
      else
        update faultline.calls c
        set spawned = c.spawned + size, fencing_token = spawn.fencing_token
        where c.id = new_call;
      end if;
      if spawn.kind = 'children' then
        insert into faultline.edges (call_id, index, job_id)
        select new_call, spawn.first_index + u.position - 1, u.id from unnest(ids) with ordinality as u (id, position);
        if known <> '{}' then
          perform faultline.refuse_cycle(spawn.job_id, known);
          perform faultline.set_watched(known);
        end if;
      end if;
      perform faultline.join_flow(spawn.job_id);
      perform faultline.wake_new(queues, lowest_priority, lowest_run_at, at, size);
      return query select new_call, case spawn.kind when 'detached' then to_jsonb(coalesce(ids, '{}')) end, null::text, null::bigint;
      return;
    exception
      -- What was inserted here is undone.
      when sqlstate 'FL099' then null;
      when data_exception then
        perform faultline.read_jobs(spawn.jobs, at, limits.args_bytes_max);
        raise;
      when unique_violation then
        raise exception 'job %: call %, "%": a job with the id of one of its jobs exists', spawn.job_id, spawn.number, spawn.name
          using errcode = 'FL003', hint = 'Nothing was enqueued. Give every job an id of its own, or leave the ids to the database.';
    end;
  end if;
  if not faultline.lock_lease(spawn.job_id, spawn.fencing_token, spawn.owner) then
    return query
      select null::bigint, null::jsonb, r.reason, r.current_token
      from faultline.refuse('spawn', array[spawn.job_id], array[spawn.fencing_token], array[spawn.owner], '{}') r;
    return;
  end if;
  select c.* into call from faultline.calls c where c.job_id = spawn.job_id and c.number = spawn.number;
  if call.id is null then
    raise exception 'job %: call %, "%", was written and undone at this moment', spawn.job_id, spawn.number, spawn.name
      using errcode = 'serialization_failure', hint = 'Nothing was enqueued; send this again.';
  end if;
  perform faultline.same_spawn(call, spawn.kind, spawn.name, spawn.digest, spawn.total);
  return query select call.id, case spawn.kind when 'detached' then call.result end, null::text, null::bigint;
end
$$;
