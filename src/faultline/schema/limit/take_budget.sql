-- Take `cost` tokens from a budget for a running job. Returns one row:
--   taken  they are taken. Sent again by the same lease with the same `number`, it says so again and takes nothing
--   wait   there are too few, and nothing was taken: give the lease back, and ask again at `until`, in so many `seconds`
--   never  the cost is greater than `burst`, which is all that there can ever be
--   stale  the lease is lost, for this reason; nothing was written
-- Before: the caller holds the lease. `number`: of the take, among those of this lease.
--
-- In any t seconds at most burst + rate * t tokens are taken, by the clock of the database; nothing gives one back.
-- A job that has waited comes before one that asks for the first time, unless the bucket is full: what it cannot hold would be
-- lost. Of the jobs that have waited and still find too few, the one that has waited longest is next: its cost is kept for it
-- until 10 seconds after the moment that it was given, so small costs do not starve a large one.
create or replace function faultline.take_budget(
  job_id uuid,
  fencing_token bigint,
  owner text,
  budget text,
  cost double precision,
  number integer default 1
) returns table (
  status text,
  until timestamptz,
  seconds double precision,
  burst double precision,
  reason text,
  current_token bigint
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan
as $$
#variable_conflict use_column
declare
  at timestamptz;
  memory jsonb;
  bucket faultline.budgets;
  wait jsonb;
  has_waited boolean;
  -- What is kept for another job.
  kept double precision;
  lined_up record;
begin
  perform faultline.read_committed('take_budget');
  -- For PostgreSQL, NaN is greater than every number.
  if not coalesce(take_budget.cost > 0 and take_budget.cost < 'Infinity', false) then
    raise exception 'the cost of a take from budget "%" must be a number greater than 0, not %', take_budget.budget, take_budget.cost
      using errcode = 'FL005', hint = 'nothing was taken';
  end if;
  perform faultline.require_synchronous_commit();
  if not faultline.lock_lease(take_budget.job_id, take_budget.fencing_token, take_budget.owner) then
    return query
      select 'stale', null::timestamptz, null::float8, null::float8, r.reason, r.current_token
      from faultline.refuse(
        'take_budget', array[take_budget.job_id], array[take_budget.fencing_token], array[take_budget.owner], '{}'
      ) r;
    return;
  end if;
  select coalesce(j.takes, '{}') into memory from faultline.open_jobs j where j.id = take_budget.job_id;
  if (memory ->> 'token')::bigint = take_budget.fencing_token and (memory ->> 'number')::integer = take_budget.number then
    return query select 'taken', null::timestamptz, null::float8, null::float8, null::text, null::bigint;
    return;
  end if;
  select b.* into bucket from faultline.budgets b where b.name = take_budget.budget for update;
  if bucket.name is null then
    raise exception 'there is no budget "%"', take_budget.budget
      using errcode = 'FL004', detail = 'budget', hint = 'nothing was taken; declare it with app.budget(...), or set it at run time';
  end if;
  burst := (bucket.effective ->> 'burst')::double precision;
  if take_budget.cost > burst then
    return query select 'never', null::timestamptz, null::float8, burst, null::text, null::bigint;
    return;
  end if;
  -- The clock is read after the lock: what other jobs took meanwhile was taken before.
  at := faultline.clock();
  bucket := faultline.refill_budget(bucket, take_budget.job_id, at);
  wait := memory #> array['waits', take_budget.budget];
  has_waited := bucket.next_job is not distinct from take_budget.job_id
    or coalesce((wait ->> 'from')::timestamptz <= at, false);
  kept := case when bucket.next_job <> take_budget.job_id then bucket.next_cost else 0 end;
  if bucket.tokens >= take_budget.cost + kept
    and (has_waited or bucket.reserved_until <= at or bucket.tokens >= burst)
  then
    status := 'taken';
    bucket.tokens := bucket.tokens - take_budget.cost;
    bucket.next_job := nullif(bucket.next_job, take_budget.job_id);
    memory := memory || jsonb_build_object('token', take_budget.fencing_token, 'number', take_budget.number);
    if (wait ->> 'to')::timestamptz <= at then
      memory := memory #- array['waits', take_budget.budget];
    end if;
  else
    status := 'wait';
    lined_up := faultline.reserve_budget_slot(
      bucket, coalesce(wait, '{}'), take_budget.job_id, take_budget.fencing_token, take_budget.cost, has_waited, at
    );
    bucket := lined_up.bucket;
    until := lined_up.until;
    seconds := extract(epoch from until - at);
    memory := jsonb_set(
      memory, '{waits}', coalesce(memory -> 'waits', '{}') || jsonb_build_object(take_budget.budget, lined_up.wait)
    );
  end if;
  update faultline.open_jobs j set takes = memory where j.id = take_budget.job_id;
  update faultline.budgets b
  set (tokens, refilled_at, reserved_until, next_job, next_since, next_cost, next_until) = (
    bucket.tokens, bucket.refilled_at, bucket.reserved_until, bucket.next_job, bucket.next_since, bucket.next_cost,
    bucket.next_until
  )
  where b.name = take_budget.budget;
  return next;
end
$$;
