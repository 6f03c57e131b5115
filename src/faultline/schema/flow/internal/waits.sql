-- What a job waits for, and when that is over.

-- Raise FL005 unless there is one array of calls per lease, and each names a call: see suspend.
create or replace function faultline.check_waits(waits jsonb, leases integer) returns void
language plpgsql immutable
as $$
begin
  if jsonb_typeof(waits) is distinct from 'array'
    or jsonb_array_length(waits) <> leases
    or exists (
      select from jsonb_array_elements(waits) as w (calls)
      where case when jsonb_typeof(w.calls) = 'array' then jsonb_array_length(w.calls) = 0 else true end
    )
  then
    raise exception 'waits must be an array with one array of calls per lease, none of them empty' using errcode = 'FL005';
  end if;
end
$$;

-- Raise unless this call of a job waits for a signal of this name now.
create or replace function faultline.check_wait(job_id uuid, number text, signal text, at timestamptz) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  call record;
begin
  select c.kind, c.name, c.ended_at is not null or coalesce(c.until <= check_wait.at, false) as is_over into call
  from faultline.calls c
  where c.job_id = check_wait.job_id and c.number = check_wait.number;
  if not found then
    raise exception 'job % has no call %', check_wait.job_id, check_wait.number
      using errcode = 'FL004', hint = 'see what it waits for with: faultline waiting';
  elsif call.kind <> 'signal' or call.name <> check_wait.signal then
    raise exception 'call % of job % is % "%" and does not wait for a signal "%"',
      check_wait.number, check_wait.job_id, call.kind, call.name, check_wait.signal
      using errcode = 'FL002', hint = 'see what it waits for with: faultline waiting';
  elsif call.is_over then
    raise exception 'job % no longer waits for signal "%" at call %', check_wait.job_id, check_wait.signal, check_wait.number
      using errcode = 'FL002', hint = 'it was received, or the time was over; see what the job waits for now';
  end if;
end
$$;

-- Write what these suspended jobs wait for into their histories: see suspend. The waits of a job and its token stand at its
-- position. Before: the caller has locked their rows.
create or replace function faultline.keep_waits(
  ids uuid[], positions bigint[], tokens bigint[], waits jsonb, at timestamptz
) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  perform faultline.check_name('the name of a call', w.name, 200, trimmed => false)
  from unnest(keep_waits.ids, keep_waits.positions) as i (id, position)
  cross join lateral jsonb_to_recordset(keep_waits.waits -> (i.position::integer - 1)) as w (name text)
  where coalesce(length(w.name), 0) not between 1 and 200 or faultline.is_unreadable(w.name);
  insert into faultline.calls (
    job_id, number, kind, name, digest, fencing_token, begun_at, awaited, together, until, policy, fresh
  )
  select
    i.id, w.number, w.kind, w.name, w.digest, keep_waits.tokens[i.position], at, true, w.together,
    coalesce(w.until, at + make_interval(secs => w.seconds)), w.policy, w.fresh
  from unnest(keep_waits.ids, keep_waits.positions) as i (id, position)
  cross join lateral jsonb_to_recordset(keep_waits.waits -> (i.position::integer - 1)) as w (
    number text, kind text, name text, digest text, seconds float8, until timestamptz, policy text, fresh boolean,
    together boolean
  )
  on conflict (job_id, number) do nothing;
  -- What was awaited before and is not now; what is awaited now and was known; the time of one that has none yet.
  update faultline.calls c
  set awaited = k.awaited, together = k.together, until = coalesce(k.again, k.until)
  from (
    select
      o.ctid, w.number is not null as awaited, w.together,
      -- A budget gives another moment each time.
      case when o.number = '0.0.0' then w.until end as again,
      coalesce(o.until, w.until, at + make_interval(secs => w.seconds)) as until
    from unnest(keep_waits.ids, keep_waits.positions) as i (id, position)
    -- Job by job: the planner may take the table for empty, and read all of it first.
    cross join lateral (
      select o.ctid, o.number, o.awaited, o.until from faultline.calls o where o.job_id = i.id and o.ended_at is null offset 0
    ) o
    left join lateral (
      select n.* from jsonb_to_recordset(keep_waits.waits -> (i.position::integer - 1)) as n (
        number text, seconds float8, until timestamptz, together boolean
      )
      where n.number = o.number
    ) w on true
    where o.awaited or w.number is not null
  ) k
  where c.ctid = k.ctid
    and (c.awaited, c.together, c.until) is distinct from (k.awaited, k.together, coalesce(k.again, k.until));
end
$$;

-- Can this job go on? `over`: yes. `failed`: no, and it never can, since a job that it comes after has ended badly.
-- Before: the caller has locked the job's row, in an earlier statement. Otherwise this would not see what was committed
-- before the lock, and whoever commits later leaves a nudge.
--
-- It can go on when one of its awaited calls is over; of those that it awaits together, when all are or one has failed.
-- `failures`: look for failed jobs among those of a call that waits for them. That reads all of them, so it is only done
-- when one has failed.
create or replace function faultline.can_resume(job_id uuid, failures boolean, out over boolean, out failed boolean)
language plpgsql volatile
set plan_cache_mode = force_generic_plan
set jit = off
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
  last constant integer := 2147483647;
  call record;
  found_index integer;
  is_over boolean;
  -- Null: none is awaited together.
  all_over boolean;
begin
  over := false;
  failed := false;
  for call in
    select c.* from faultline.calls c where c.job_id = can_resume.job_id and c.awaited and c.ended_at is null order by c.id
  loop
    is_over := coalesce(call.until <= faultline.clock(), false);
    if not is_over and call.kind in ('children', 'watch', 'after') then
      found_index := faultline.open_child(call.id, coalesce(call.open_index, last));
      if found_index is null and call.open_index is not null then
        -- All up to there have ended. One above may be open again: a job that was retried.
        found_index := faultline.open_child(call.id, last, call.open_index);
      end if;
      if found_index is not null and found_index is distinct from call.open_index then
        update faultline.calls c set open_index = found_index where c.id = call.id;
      end if;
      is_over := found_index is null and call.spawned >= coalesce(call.total, 0);
      if call.policy in ('fast', 'cancel') and (can_resume.failures or is_over) and faultline.has_failed(call.id) then
        is_over := true;
        failed := failed or call.policy = 'cancel';
      end if;
    elsif not is_over and call.kind = 'signal' then
      is_over := faultline.kept_signal(can_resume.job_id, call.name, call.number, call.fresh, call.begun_at) is not null;
    end if;
    if call.together then
      all_over := is_over and coalesce(all_over, true);
      if is_over and call.kind in ('children', 'watch') and call.policy is distinct from 'keep' then
        -- The program raises its error, and waits for none of the others.
        over := over or faultline.has_failed(call.id);
      end if;
    else
      over := over or is_over;
    end if;
    exit when over or failed;
  end loop;
  over := not failed and (over or coalesce(all_over, false));
end
$$;

-- The moment at which a call was over, or null: it is not. A sleep and a timeout at their time, a signal when it was sent, jobs
-- when the last of them had ended; with the policy `fast`, when the first of them had failed. A step when its end was recorded.
create or replace function faultline.over_at(call faultline.calls, at timestamptz) returns timestamptz
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  timeout constant timestamptz := case when call.until <= over_at.at then call.until end;
  -- Not in the query that uses it: there it would be looked for once for each row of the table.
  kept bigint;
  ended timestamptz;
  failed timestamptz;
begin
  if call.kind = 'signal' then
    kept := faultline.kept_signal(call.job_id, call.name, call.number, call.fresh, call.begun_at);
    return least(timeout, (select s.sent_at from faultline.signals s where s.id = kept));
  elsif call.kind in ('children', 'watch') then
    -- A job that was pruned has ended at some time before.
    select
      case when bool_and(o.state is null or o.state not in ('queued', 'running')) and call.spawned >= call.total
        then coalesce(max(coalesce(f.finished_at, o.finished_at)), call.begun_at)
      end,
      case when call.policy = 'fast' then min(o.finished_at) end
    into ended, failed
    from faultline.edges e
    -- Looked up one by one, as in `complete`.
    left join faultline.ledger f on f.job_id = any (array[e.job_id])
    left join lateral (
      select j.state, j.finished_at from faultline.open_jobs j where j.id = any (array[e.job_id]) and f.job_id is null offset 0
    ) o on true
    where e.call_id = call.id;
    return least(timeout, case when call.total = 0 then call.begun_at else ended end, failed);
  elsif call.kind in ('step', 'atomic') then
    return coalesce(call.ended_at, over_at.at);
  end if;
  return timeout;
end
$$;

-- End the wait of a race that was over first, at `moment`. A signal that came after the time was over is not received.
create or replace function faultline.end_wait(inout call faultline.calls, fencing_token bigint, moment timestamptz, at timestamptz)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  -- See over_at.
  kept bigint;
begin
  call.outcome := 'done';
  if call.kind = 'signal' then
    kept := faultline.kept_signal(call.job_id, call.name, call.number, call.fresh, call.begun_at);
    update faultline.signals s
    set received_by = call.number, received_at = at
    where s.id = kept
      -- Not one that came after the time was over.
      and s.sent_at = moment
    returning s.payload into call.result;
    call.outcome := case when found then 'done' else 'timeout' end;
  end if;
  update faultline.calls c
  set fencing_token = end_wait.fencing_token, awaited = false, ended_at = at, outcome = call.outcome, result = call.result
  where c.id = call.id;
end
$$;

-- The oldest signal that this call may receive, or null. A signal that was sent to a call is for that call only. If the
-- call is `fresh`, it does not receive what was sent before the program first came to it: that may answer an earlier
-- question.
create or replace function faultline.kept_signal(
  job_id uuid, name text, number text, fresh boolean, begun_at timestamptz
) returns bigint
language plpgsql volatile
set jit = off
set enable_seqscan = off
set enable_sort = off
as $$
#variable_conflict use_column
begin
  return (
    select s.id
    from faultline.signals s
    where s.job_id = kept_signal.job_id
      and s.name = kept_signal.name
      and s.received_by is null
      and case
        when s.for_call is not null then s.for_call = kept_signal.number
        else kept_signal.fresh is not true or s.sent_at >= kept_signal.begun_at
      end
    order by s.id
    limit 1
  );
end
$$;

-- The error of a job that was cancelled because a job that it comes after has ended badly. A retry of that job queues it
-- again.
create or replace function faultline.unreached_error() returns text
language sql immutable parallel safe
return 'cancelled: a job that it comes after has failed or was cancelled';

-- Raise that a job which a call waited for is gone. Called where its state would be told: it returns nothing.
create or replace function faultline.outcome_pruned(job_id uuid, index integer) returns text
language plpgsql volatile
as $$
begin
  raise exception 'job %, which is number % of this call, is gone: it was pruned', job_id, index
    using errcode = 'FL004', hint = 'keep jobs that others wait for longer: see the retention settings';
end
$$;

-- Raise the error for a job that has no open row: it has succeeded (FL002), or does not exist (FL004).
-- With `only_queues`, jobs of other queues do not exist.
create or replace function faultline.not_open(job_id uuid, wish text, only_queues text[] default null) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  if exists (
    select from faultline.ledger f
    where f.job_id = not_open.job_id and (not_open.only_queues is null or f.queue = any (not_open.only_queues))
  ) then
    raise exception 'job % has succeeded and cannot be %', not_open.job_id, not_open.wish
      using errcode = 'FL002', hint = 'enqueue a new job to do the work again';
  end if;
  raise exception 'no job %', not_open.job_id
    using errcode = 'FL004', hint = 'it was never enqueued in this database, or it was pruned after its retention time';
end
$$;
