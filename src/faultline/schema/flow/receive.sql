-- Receive the oldest signal of a name, as the call with this number. Returns one row:
--   received  with the payload; it is history now, and no other call receives it
--   timeout   the time is over. That is history too: a signal that comes later does not change it
--   closed    another call of its race was over first
--   none      nothing is there yet, and the time is not over: suspend
--   stale     the lease is lost, for this reason; nothing was written
-- Before: the caller holds the lease. After: the call is known. Its time runs from when the program first came to it, or came to
-- it again after a retry: `seconds`, or 30 days. Sent again, it returns what it returned.
-- With `fresh`, only what was sent since then, or to this very call: an answer to an earlier question is none to this one.
create or replace function faultline.receive(
  job_id uuid,
  fencing_token bigint,
  owner text,
  number text,
  name text,
  digest text default null,
  seconds float8 default null,
  fresh boolean default false
) returns table (
  status text,
  payload jsonb,
  until timestamptz,
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
  call faultline.calls;
  taken bigint;
  lasts interval;
begin
  perform faultline.read_committed('receive');
  if receive.seconds not between 0 and 315360000 then
    raise exception 'job %: signal "%" cannot be waited for % seconds; it can for 0 to 315360000',
      receive.job_id, receive.name, receive.seconds using errcode = 'FL005';
  end if;
  perform faultline.require_synchronous_commit();
  if not faultline.lock_lease(receive.job_id, receive.fencing_token, receive.owner) then
    return query
      select 'stale', null::jsonb, null::timestamptz, r.reason, r.current_token
      from faultline.refuse('receive', array[receive.job_id], array[receive.fencing_token], array[receive.owner], '{}') r;
    return;
  end if;
  at := faultline.clock();
  lasts := make_interval(secs => coalesce(receive.seconds, 2592000));
  select c.* into call from faultline.calls c where c.job_id = receive.job_id and c.number = receive.number;
  if call.id is null then
    perform faultline.check_name('the name of a signal', receive.name, 200, trimmed => false);
    insert into faultline.calls as c (job_id, number, kind, name, digest, fencing_token, begun_at, until, fresh)
    values (
      receive.job_id, receive.number, 'signal', receive.name, receive.digest, receive.fencing_token, at,
      at + lasts, coalesce(receive.fresh, false)
    )
    returning c.* into call;
    perform faultline.join_flow(receive.job_id);
  else
    perform faultline.same_call(call, 'signal', receive.name, receive.digest);
    if call.until is null then
      update faultline.calls c
      set until = at + lasts
      where c.id = call.id and c.ended_at is null
      returning c.until into call.until;
    end if;
  end if;
  if call.ended_at is null then
    taken := faultline.kept_signal(call.job_id, call.name, call.number, call.fresh, call.begun_at);
    if taken is not null then
      update faultline.signals s
      set received_by = call.number, received_at = at
      where s.job_id = call.job_id and s.id = taken
      returning s.payload into call.result;
      call.outcome := 'done';
    elsif call.until <= at then
      call.outcome := 'timeout';
    end if;
    if call.outcome is not null then
      update faultline.calls c
      set fencing_token = receive.fencing_token, awaited = false, ended_at = at, outcome = call.outcome, result = call.result
      where c.id = call.id;
    end if;
  end if;
  return query
    select
      case when call.outcome is null then 'none' when call.outcome = 'done' then 'received' else call.outcome end,
      call.result, call.until, null::text, null::bigint;
end
$$;
