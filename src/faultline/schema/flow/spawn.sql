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
  at constant timestamptz := faultline.clock();
  args_bytes_max constant integer := (select s.args_bytes_max from faultline.settings s);
  -- The call as the program makes it.
  wanted faultline.calls;
  chunk record;
  call faultline.calls;
  made record;
begin
  perform faultline.read_committed('spawn');
  wanted.job_id := spawn.job_id;
  wanted.fencing_token := spawn.fencing_token;
  wanted.number := spawn.number;
  wanted.kind := spawn.kind;
  wanted.name := spawn.name;
  wanted.digest := spawn.digest;
  wanted.policy := spawn.policy;
  wanted.total := spawn.total;
  chunk := faultline.read_chunk(wanted, spawn.first_index, spawn.jobs, at, args_bytes_max);
  perform faultline.require_synchronous_commit();
  select c.* into call from faultline.calls c where c.job_id = wanted.job_id and c.number = wanted.number;
  if call.id is null or (call.ended_at is null and call.spawned < spawn.first_index + chunk.size) then
    begin
      -- Its jobs know the call before it is written.
      wanted.id := coalesce(call.id, nextval(pg_get_serial_sequence('faultline.calls', 'id')));
      made := faultline.insert_chunk(wanted, chunk.document, chunk.keyed, chunk.named is distinct from false, at, args_bytes_max);
      if not faultline.lock_lease(wanted.job_id, wanted.fencing_token, spawn.owner) then
        raise exception 'the lease is lost' using errcode = 'FL099';
      end if;
      -- In a new statement, after the lock: no other session writes calls of this job now.
      select c.* into call from faultline.calls c where c.job_id = wanted.job_id and c.number = wanted.number;
      if call.id is not null then
        perform faultline.same_spawn(call, wanted);
      end if;
      if call.ended_at is not null or call.spawned >= spawn.first_index + chunk.size then
        raise exception 'these jobs exist' using errcode = 'FL099';
      elsif coalesce(call.spawned, 0) <> spawn.first_index then
        raise exception 'job %: call %, "%", has % of its jobs and cannot go on with number %',
          wanted.job_id, wanted.number, wanted.name, coalesce(call.spawned, 0), spawn.first_index
          using errcode = 'FL005', hint = 'Nothing was enqueued. Send the chunks in their order.';
      end if;
      perform faultline.keep_chunk(wanted, spawn.first_index, made.ids, made.known, at);
      perform faultline.wake_new(made.queues, made.lowest_priority, made.lowest_run_at, at, chunk.size);
      return query
        select wanted.id, case wanted.kind when 'detached' then to_jsonb(coalesce(made.ids, '{}')) end, null::text, null::bigint;
      return;
    exception
      -- What was inserted here is undone.
      when sqlstate 'FL099' then null;
      when data_exception then
        perform faultline.read_jobs(spawn.jobs, at, args_bytes_max);
        raise;
      when unique_violation then
        raise exception 'job %: call %, "%": a job with the id of one of its jobs exists', wanted.job_id, wanted.number, wanted.name
          using errcode = 'FL003', hint = 'Nothing was enqueued. Give every job an id of its own, or leave the ids to the database.';
    end;
  end if;
  if not faultline.lock_lease(wanted.job_id, wanted.fencing_token, spawn.owner) then
    return query
      select null::bigint, null::jsonb, r.reason, r.current_token
      from faultline.refuse('spawn', array[spawn.job_id], array[spawn.fencing_token], array[spawn.owner], '{}') r;
    return;
  end if;
  select c.* into call from faultline.calls c where c.job_id = wanted.job_id and c.number = wanted.number;
  if call.id is null then
    raise exception 'job %: call %, "%", was written and undone at this moment', wanted.job_id, wanted.number, wanted.name
      using errcode = 'serialization_failure', hint = 'Nothing was enqueued; send this again.';
  end if;
  perform faultline.same_spawn(call, wanted);
  return query select call.id, case wanted.kind when 'detached' then call.result end, null::text, null::bigint;
end
$$;
