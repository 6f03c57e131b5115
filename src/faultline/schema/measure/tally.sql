-- Store a worker's counts: for each queue, since the minute of the row began. Sent again, it changes nothing; a row
-- that arrives late does not overwrite a newer one.
-- `rows` is a JSON array of objects with `queue`, `minute` and the counts, named like the columns of faultline.tallies.
-- Minutes older than 55 minutes are ignored: they may have been rolled up, and would be counted twice.
create or replace function faultline.tally(worker_id text, rows jsonb) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan
as $$
begin
  if coalesce(tally.worker_id, '') = '' then
    raise exception 'a tally needs the id of its worker: rows without one are rolled up' using errcode = 'FL005';
  end if;
  insert into faultline.tallies as t (
    queue, minute, worker, started, succeeded, failed, rescheduled, released, suspended, programs_changed, expired,
    lost, refused, requeued, wait_seconds_sum, run_seconds_sum, waits, runs
  )
  select
    r.queue, date_trunc('minute', r.minute), tally.worker_id, r.started, r.succeeded, r.failed, r.rescheduled, r.released,
    r.suspended, r.programs_changed, r.expired, r.lost, r.refused, r.requeued, r.wait_seconds_sum, r.run_seconds_sum, r.waits, r.runs
  from jsonb_to_recordset(tally.rows) as r (
    queue text, minute timestamptz, started bigint, succeeded bigint, failed bigint, rescheduled bigint, released bigint,
    suspended bigint, programs_changed bigint, expired bigint, lost bigint, refused bigint, requeued bigint,
    wait_seconds_sum float8, run_seconds_sum float8, waits bigint[], runs bigint[]
  )
  where r.minute > faultline.clock() - interval '55 minutes'
    and r.minute < faultline.clock() + interval '5 minutes'
  on conflict (queue, minute, worker) do update
  set started = excluded.started,
      succeeded = excluded.succeeded,
      failed = excluded.failed,
      rescheduled = excluded.rescheduled,
      released = excluded.released,
      suspended = excluded.suspended,
      programs_changed = excluded.programs_changed,
      expired = excluded.expired,
      lost = excluded.lost,
      refused = excluded.refused,
      requeued = excluded.requeued,
      wait_seconds_sum = excluded.wait_seconds_sum,
      run_seconds_sum = excluded.run_seconds_sum,
      waits = excluded.waits,
      runs = excluded.runs
  -- Within a minute counts only grow, so the larger sum is the newer one.
  where t.started + t.succeeded + t.failed + t.rescheduled + t.released + t.suspended + t.programs_changed + t.expired
      + t.lost + t.refused + t.requeued
    <= excluded.started + excluded.succeeded + excluded.failed + excluded.rescheduled + excluded.released + excluded.suspended
      + excluded.programs_changed + excluded.expired + excluded.lost + excluded.refused + excluded.requeued;
end
$$;
