-- Budgets: checked, written, refilled and taken from.

-- The fields of a budget as they are stored: its rate with its seconds and its burst. Raises FL005 for what makes no sense.
create or replace function faultline.checked_budget(budget text, fields jsonb) returns jsonb
language plpgsql stable
as $$
begin
  perform faultline.check_name('the name of a budget', budget, 100, trimmed => false);
  fields := faultline.checked_limit(fields, format('budget "%s"', budget), true);
  if coalesce(jsonb_typeof(fields -> 'rate'), 'null') = 'null' or fields ? 'concurrency' then
    raise exception 'the limit of budget "%" is refused: it has a "rate", with "per" and "burst", and nothing else', budget
      using errcode = 'FL005', detail = 'Nothing was changed.';
  end if;
  return fields - array['weight', 'ordered'];
end
$$;

-- Store one budget: what is declared, or what a person has set; the other is null, and stays. Both empty: a person removes it.
-- What is in it stays, up to the new burst. If more may be taken than before, the jobs that wait ask again at once: by the
-- moments that the old rate gave them they would wait for too long. Jobs that were told to wait and still run are due at once
-- when they give their lease back: see budget_raised_since_asked. Returns whether anything changed; if so, the journal says what.
create or replace function faultline.write_budget(budget text, declared jsonb, override jsonb, signed jsonb) returns boolean
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  at timestamptz;
  was faultline.budgets;
  by_code jsonb;
  by_people jsonb;
  wanted jsonb;
begin
  if coalesce(write_budget.declared, write_budget.override) <> '{}' then
    insert into faultline.budgets (name) values (write_budget.budget) on conflict do nothing;
  end if;
  select b.* into was from faultline.budgets b where b.name = write_budget.budget for update;
  by_code := coalesce(write_budget.declared, was.declared);
  by_people := coalesce(write_budget.override, was.override);
  if was.name is null or (was.declared, was.override) = (by_code, by_people) then
    return false;
  end if;
  wanted := by_code || by_people;
  at := faultline.clock();
  if wanted = '{}' then
    delete from faultline.budgets b where b.name = write_budget.budget;
  else
    update faultline.budgets b
    set declared = by_code,
        override = by_people,
        effective = wanted,
        tokens = faultline.refilled(
          b.tokens, b.refilled_at, faultline.rate_of(b.effective), (b.effective ->> 'burst')::double precision, at
        ),
        refilled_at = faultline.refill_moment(b.refilled_at, at)
    where b.name = write_budget.budget;
    -- Who set what wins over the code stays on record, whatever is deployed later.
    update faultline.budgets b
    set changed_at = at, changed_by = signed ->> 'by', reason = signed ->> 'reason'
    where b.name = write_budget.budget and (was.override <> by_people or was.override = '{}');
  end if;
  insert into faultline.journal (at, event, detail)
  values (
    at, 'limit_changed',
    jsonb_build_object(
      'budget', write_budget.budget, 'was', was.effective, 'is', wanted, 'by_code', write_budget.override is null
    ) || signed
  );
  if faultline.rate_of(wanted) > faultline.rate_of(was.effective)
    or (wanted ->> 'burst')::double precision > (was.effective ->> 'burst')::double precision
  then
    update faultline.budgets b set reserved_until = at, next_job = null, raised_at = at where b.name = write_budget.budget;
    perform faultline.wake_budget_waiters(write_budget.budget);
  end if;
  return true;
end
$$;

-- Whether nothing is set for a budget, and no worker that is alive has it in its code. While there is no worker, or one that has
-- just started and not said what it has, its code may have it.
create or replace function faultline.orphaned_budget(budget text) returns boolean
language sql volatile
as $$
  select exists (select from faultline.budgets b where b.name = orphaned_budget.budget and b.override = '{}')
    and coalesce((
      select bool_and(coalesce(orphaned_budget.budget <> all (w.budgets), false))
      from faultline.workers w
      where w.heartbeat_at > faultline.clock() - interval '15 seconds'
    ), false);
$$;

-- When a job that found too few tokens should ask again, and what its budget and the job remember of that. One that has a long
-- time to wait asks at half of it, in case those before it were cancelled: its place stays.
-- `wait`: what it was given before: {"since": when it first found too few, "from": its moment, "to": the last one, if several
-- takes of the same run wait, "token": the run that was given them, "asked_at": when it asked, "cost": what it asked for}.
create or replace function faultline.reserve_budget_slot(
  inout bucket faultline.budgets,
  inout wait jsonb,
  job_id uuid,
  fencing_token bigint,
  cost double precision,
  has_waited boolean,
  at timestamptz,
  out until timestamptz
)
language plpgsql stable
as $$
declare
  rate constant double precision := faultline.rate_of(bucket.effective);
  since constant timestamptz := coalesce((wait ->> 'since')::timestamptz, at);
  mine constant timestamptz := (wait ->> 'from')::timestamptz;
  last constant timestamptz := (wait ->> 'to')::timestamptz;
  is_next constant boolean := (has_waited or bucket.reserved_until <= at) and (
    bucket.next_job is null or bucket.next_job = reserve_budget_slot.job_id
    or (since, reserve_budget_slot.job_id) < (bucket.next_since, bucket.next_job)
  );
  kept constant double precision := case when bucket.next_job <> reserve_budget_slot.job_id then bucket.next_cost else 0 end;
  missing double precision;
  moment timestamptz;
begin
  missing := case
    when is_next then cost - bucket.tokens
    -- It asks before its time: its place stays.
    when mine > at and (wait ->> 'token')::bigint <> fencing_token then extract(epoch from mine - at) * rate
    -- It has moments to come, for other takes of it.
    when last > at and mine <= at then cost + kept - bucket.tokens
    else cost + greatest(extract(epoch from nullif(bucket.reserved_until, '-infinity') - at) * rate, kept - bucket.tokens)
  end;
  -- No sooner than a snooze, and a moment more than is needed: both clock and tokens are rounded.
  moment := at + make_interval(secs => least(greatest(missing / rate, 0.1) + 0.001, 31536000));
  until := least(moment, greatest(
    at + (moment - at) / 2, at + interval '1 minute',
    -- When the bucket is full, if nothing is taken.
    at + make_interval(secs => least((bucket.effective ->> 'burst')::double precision / rate + 0.001, 31536000))
  ));
  wait := jsonb_build_object(
    'since', since,
    -- While moments are to come, it counts as one that has waited.
    'from', case when last > at then least(mine, moment) else moment end,
    'to', greatest(last, moment),
    -- For people who look.
    'cost', cost,
    'token', fencing_token,
    'asked_at', at
  );
  bucket.reserved_until := greatest(bucket.reserved_until, moment);
  if is_next then
    bucket.next_job := reserve_budget_slot.job_id;
    bucket.next_since := since;
    bucket.next_cost := cost;
    bucket.next_until := moment + interval '10 seconds';
  end if;
end
$$;

-- A budget as it is at this moment, for a job that takes from it: refilled, and kept for no job that will not come.
create or replace function faultline.refill_budget(
  bucket faultline.budgets, job_id uuid, at timestamptz
) returns faultline.budgets
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  bucket.tokens := faultline.refilled(
    bucket.tokens, bucket.refilled_at, faultline.rate_of(bucket.effective), (bucket.effective ->> 'burst')::double precision, at
  );
  if bucket.refilled_at > at + interval '1 second' then
    -- A clock was ahead: no job waits for the moments that it gave.
    bucket.reserved_until := at;
    bucket.next_job := null;
  end if;
  bucket.refilled_at := faultline.refill_moment(bucket.refilled_at, at);
  if bucket.next_until <= at or bucket.next_job <> refill_budget.job_id and not exists (
    select from (select j.state from faultline.open_jobs j where j.id = bucket.next_job offset 0) j
    where j.state in ('queued', 'running')
  ) then
    -- It did not come in time, or has ended: others do not wait for it any longer.
    bucket.next_job := null;
  end if;
  return bucket;
end
$$;

-- Whether a budget was raised since the present run of a job was told how long to wait for it. Before: the caller holds the
-- job's row, and is about to give its lease back. Then the job is due at once: raising a budget wakes the jobs that wait by then,
-- and this one was still running.
-- Locks the budgets that it waits for: a raise comes after the caller's commit then, and finds the job.
create or replace function faultline.budget_raised_since_asked(job_id uuid) returns boolean
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  one record;
begin
  for one in
    select b.raised_at, (w.value ->> 'asked_at')::timestamptz as asked_at
    from (
      select w.key, w.value
      from faultline.open_jobs j
      cross join lateral jsonb_each(coalesce(j.takes -> 'waits', '{}')) w
      where j.id = budget_raised_since_asked.job_id and (w.value ->> 'token')::bigint = j.fencing_token
      offset 0
    ) w
    join faultline.budgets b on b.name = w.key
    order by b.name
    for share of b
  loop
    if one.raised_at >= one.asked_at then
      return true;
    end if;
  end loop;
  return false;
end
$$;

-- Have the jobs that wait for a budget since before it was raised ask again at once; with `jobs`, only these.
-- Before: the caller has locked the budget.
-- Waits for no lock: a submission that was answered with a unique job holds that job's lock until its transaction ends, which may
-- take long. Jobs that are locked are noted, and `reconcile` wakes them later.
create or replace function faultline.wake_budget_waiters(budget text, jobs uuid[] default null) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  at constant timestamptz := faultline.clock();
  raised constant timestamptz := (select b.raised_at from faultline.budgets b where b.name = wake_budget_waiters.budget);
  path constant text[] := array['waits', wake_budget_waiters.budget];
  woken uuid[];
begin
  with waiting as materialized (
    select j.ctid from faultline.open_jobs j
    where (wake_budget_waiters.jobs is null or j.id = any (wake_budget_waiters.jobs))
      and j.state = 'queued' and j.next_run_at > at and j.in_group is null
      and (j.takes #> path ->> 'asked_at')::timestamptz <= raised
    for update skip locked
  ),
  woken as (
    update faultline.open_jobs j
    set next_run_at = at, suspended = null, takes = j.takes #- path
    from waiting w
    where j.ctid = w.ctid
    returning j.id
  )
  select array_agg(w.id) into woken from woken w;
  perform faultline.wake_for(woken);
  update faultline.budgets b
  set asleep = (
    select array_agg(j.id) from faultline.open_jobs j
    where (wake_budget_waiters.jobs is null or j.id = any (wake_budget_waiters.jobs))
      and j.state = 'queued' and j.next_run_at > at and j.in_group is null
      and (j.takes #> path ->> 'asked_at')::timestamptz <= raised
  )
  where b.name = wake_budget_waiters.budget;
end
$$;
