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
    queue, minute, worker, started, succeeded, failed, retried, released, suspended, programs_changed, expired,
    lost, refused, recovered, wait_seconds_sum, run_seconds_sum, waits, runs
  )
  select
    r.queue, date_trunc('minute', r.minute), tally.worker_id, r.started, r.succeeded, r.failed, r.retried, r.released,
    -- The build before this one does not count these.
    coalesce(r.suspended, 0), coalesce(r.programs_changed, 0), coalesce(r.expired, 0),
    r.lost, r.refused, r.recovered, r.wait_seconds_sum, r.run_seconds_sum, r.waits, r.runs
  from jsonb_to_recordset(tally.rows) as r (
    queue text, minute timestamptz, started bigint, succeeded bigint, failed bigint, retried bigint, released bigint,
    suspended bigint, programs_changed bigint, expired bigint, lost bigint, refused bigint, recovered bigint,
    wait_seconds_sum float8, run_seconds_sum float8, waits bigint[], runs bigint[]
  )
  where r.minute > faultline.clock() - interval '55 minutes'
    and r.minute < faultline.clock() + interval '5 minutes'
  on conflict (queue, minute, worker) do update
  set started = excluded.started,
      succeeded = excluded.succeeded,
      failed = excluded.failed,
      retried = excluded.retried,
      released = excluded.released,
      suspended = excluded.suspended,
      programs_changed = excluded.programs_changed,
      expired = excluded.expired,
      lost = excluded.lost,
      refused = excluded.refused,
      recovered = excluded.recovered,
      wait_seconds_sum = excluded.wait_seconds_sum,
      run_seconds_sum = excluded.run_seconds_sum,
      waits = excluded.waits,
      runs = excluded.runs
  -- Within a minute counts only grow, so the larger sum is the newer one.
  where t.started + t.succeeded + t.failed + t.retried + t.released + t.suspended + t.programs_changed + t.expired
      + t.lost + t.refused + t.recovered
    <= excluded.started + excluded.succeeded + excluded.failed + excluded.retried + excluded.released + excluded.suspended
      + excluded.programs_changed + excluded.expired + excluded.lost + excluded.refused + excluded.recovered;
end
$$;
