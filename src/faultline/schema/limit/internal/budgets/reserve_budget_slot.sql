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
