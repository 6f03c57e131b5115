-- Of the waits of a race, end the one that was over first by the record of the database, and no other. Returns one row:
--   received  a signal, with its payload
--   timeout   a signal or jobs whose time was over before they came. What comes later stays for others
--   taken     jobs, as `collect_outcomes` returns it
--   done      a sleep, or a step of the race that ended before any of its waits was over
--   none      nothing is over. `seconds_left`: until the next time is; null: none has one
--   stale     the lease is lost, for this reason; nothing was written
-- `waits` is a JSON array in the order of the race's arguments, which decides between equal moments: [{"number", "kind", "name",
-- "digest", "seconds", "until", "fresh"}, …]. Calls that are not known are stored, as by `suspend`; the children of one are
-- enqueued before. A signal without `seconds` has no limit here: the race has its own.
-- Before: the caller holds the lease. Sent again, it returns what it returned: of what has ended, the first.
create or replace function faultline.first_over(
  job_id uuid,
  fencing_token bigint,
  owner text,
  waits jsonb
) returns table (
  number text,
  status text,
  result jsonb,
  seconds_left float8,
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
  at timestamptz;
  given record;
  call faultline.calls;
  moment timestamptz;
  found_call faultline.calls;
  found_at timestamptz;
  next_at timestamptz;
begin
  perform faultline.read_committed('first_over');
  if jsonb_typeof(first_over.waits) is distinct from 'array' then
    raise exception 'waits must be a JSON array of objects' using errcode = 'FL005';
  end if;
  perform faultline.require_synchronous_commit();
  if not faultline.lock_lease(first_over.job_id, first_over.fencing_token, first_over.owner) then
    return query
      select null::text, 'stale', null::jsonb, null::float8, r.reason, r.current_token
      from faultline.refuse('first_over', array[first_over.job_id], array[first_over.fencing_token], array[first_over.owner], '{}') r;
    return;
  end if;
  at := faultline.clock();
  for given in
    select w.*
    from jsonb_to_recordset(first_over.waits) as w (
      number text, kind text, name text, digest text, seconds float8, until timestamptz, fresh boolean
    )
  loop
    if given.seconds not between 0 and 315360000 then
      raise exception 'job %: call %, % "%", cannot wait for % seconds; it can for 0 to 315360000',
        first_over.job_id, given.number, given.kind, given.name, given.seconds using errcode = 'FL005';
    end if;
    call := faultline.insert_or_find_call(
      first_over.job_id, first_over.fencing_token, at,
      given.number, given.kind, given.name, given.digest, given.seconds, given.until, given.fresh
    );
    if call.ended_at is not null and call.kind not in ('step', 'atomic') then
      found_call := call;
      exit;
    end if;
    moment := faultline.over_at(call, at);
    if moment < coalesce(found_at, 'infinity') then
      found_call := call;
      found_at := moment;
    end if;
    next_at := least(next_at, call.until);
  end loop;
  perform faultline.join_flow(first_over.job_id);
  if found_call.number is null then
    return query
      select null::text, 'none', null::jsonb, greatest(extract(epoch from next_at - at), 0)::float8, null::text, null::bigint;
    return;
  end if;
  if found_call.kind in ('step', 'atomic') then
    return query select found_call.number, 'done', null::jsonb, null::float8, null::text, null::bigint;
    return;
  elsif found_call.kind in ('children', 'watch') then
    return query
      select found_call.number, t.status, t.result, null::float8, t.reason, t.current_token
      from faultline.collect_outcomes(first_over.job_id, first_over.fencing_token, first_over.owner, found_call.number) t;
    return;
  end if;
  if found_call.ended_at is null then
    found_call := faultline.end_wait(found_call, first_over.fencing_token, found_at, at);
  end if;
  return query
    select
      found_call.number,
      case when found_call.kind = 'signal' and found_call.outcome = 'done' then 'received' else found_call.outcome end,
      found_call.result, null::float8, null::text, null::bigint;
end
$$;
