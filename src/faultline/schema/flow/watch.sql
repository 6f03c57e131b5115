-- Have a call wait for jobs that are not its children. Returns the id of the call, or why the lease is lost; then nothing was written.
-- Before: the caller holds the lease. After: the ends of these jobs are told to the job that watches them. They belong to
-- themselves: nobody cancels them with it. Sent again, nothing happens.
-- Raises FL005 for a job that waits for this one, or is this one, and 55P03 if one of the jobs is locked: send it again in a moment.
create or replace function faultline.watch(
  job_id uuid,
  fencing_token bigint,
  owner text,
  number text,
  name text,
  digest text,
  policy text,
  targets uuid[]
) returns table (
  call_id bigint,
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
  targets_max constant integer := 1000;
  at constant timestamptz := faultline.clock();
  call faultline.calls;
  missing uuid;
begin
  perform faultline.read_committed('watch');
  if coalesce(cardinality(watch.targets), 0) = 0 or array_position(watch.targets, null) is not null then
    raise exception 'targets must be ids of jobs, and at least one' using errcode = 'FL005';
  elsif cardinality(watch.targets) > targets_max then
    raise exception 'one call can watch % jobs, not %', targets_max, cardinality(watch.targets)
      using errcode = 'FL007', hint = 'watch them by several calls';
  end if;
  perform faultline.require_synchronous_commit();
  if not faultline.lock_lease(watch.job_id, watch.fencing_token, watch.owner) then
    return query
      select null::bigint, r.reason, r.current_token
      from faultline.refuse('watch', array[watch.job_id], array[watch.fencing_token], array[watch.owner], '{}') r;
    return;
  end if;
  select c.* into call from faultline.calls c where c.job_id = watch.job_id and c.number = watch.number;
  if call.id is not null then
    perform faultline.same_call(call, 'watch', watch.name, watch.digest);
    return query select call.id, null::text, null::bigint;
    return;
  end if;
  perform faultline.check_name('the name of a call', watch.name, 200, trimmed => false);
  perform faultline.refuse_cycle(watch.job_id, watch.targets);
  select t.id into missing
  from unnest(watch.targets) as t (id)
  where not exists (select from faultline.open_jobs j where j.id = any (array[t.id]))
    and not exists (select from faultline.ledger f where f.job_id = any (array[t.id]))
  limit 1;
  if found then
    raise exception 'job % cannot wait for job %, which does not exist', watch.job_id, missing
      using errcode = 'FL004', hint = 'it was never enqueued in this database, or it was pruned after its retention time';
  end if;
  insert into faultline.calls as c (job_id, number, kind, name, digest, fencing_token, begun_at, until, policy, total, spawned)
  values (
    watch.job_id, watch.number, 'watch', watch.name, watch.digest, watch.fencing_token, at,
    -- Whoever it waits for may never end.
    at + interval '30 days', watch.policy, cardinality(watch.targets), cardinality(watch.targets)
  )
  returning c.id into call.id;
  insert into faultline.edges (call_id, index, job_id)
  select call.id, t.position - 1, t.id from unnest(watch.targets) with ordinality as t (id, position);
  perform faultline.set_watched(watch.targets);
  perform faultline.join_flow(watch.job_id);
  return query select call.id, null::text, null::bigint;
end
$$;
