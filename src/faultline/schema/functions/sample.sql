-- Count what waits, runs and has failed, by queue, and remember it. Answers whether it did.
-- At most every 5 seconds, by one session at a time, and at most 2 % of the time, so any number may ask. It reads and locks no job.
--
-- A queue that has emptied is written down as empty, as long as somebody has worked on it within a day.
create or replace function faultline.sample() returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan
set jit = off
set enable_seqscan = off
set max_parallel_workers_per_gather = 0
as $$
declare
  began constant timestamptz := faultline.clock();
begin
  if not pg_try_advisory_xact_lock(hashtextextended('faultline sample', 0)) then
    return false;
  end if;
  if exists (
    select from faultline.sampling l
    where began >= l.sampled_at
      and began < l.sampled_at + make_interval(secs => greatest(5, 50 * l.took_seconds))
  ) then
    return false;
  end if;
  with recursive tallied (name) as (
    (select queue from faultline.tallies order by queue limit 1)
    union all
    select (select t.queue from faultline.tallies t where t.queue > f.name order by t.queue limit 1)
    from tallied f
    where f.name is not null
  ),
  sampled (name) as (
    (select queue from faultline.samples order by queue limit 1)
    union all
    select (select s.queue from faultline.samples s where s.queue > f.name order by s.queue limit 1)
    from sampled f
    where f.name is not null
  ),
  waiting as (
    select
      j.queue,
      count(*) filter (where j.next_run_at <= began) as due,
      count(*) filter (where j.next_run_at > began) as delayed,
      min(j.next_run_at) filter (where j.next_run_at <= began) as oldest
    from faultline.open_jobs j
    where j.state = 'queued'
    group by j.queue
  ),
  leased as (
    select j.queue, count(*) as running
    from faultline.open_jobs j
    where j.state = 'running' and j.lease_expires_at <= 'infinity'
    group by j.queue
  ),
  ended as (
    select j.queue, count(*) as failed
    from faultline.open_jobs j
    where j.state in ('failed', 'cancelled') and j.state = 'failed' and j.finished_at <= 'infinity'
    group by j.queue
  ),
  known as (
    select f.name from tallied f
    where exists (select from faultline.tallies t where t.queue = f.name and t.minute > began - interval '1 day')
    union
    select f.name from sampled f
    cross join lateral (select * from faultline.samples s where s.queue = f.name order by s.minute desc limit 1) s
    where s.due + s.delayed + s.running + s.failed > 0
    union
    select w.queue from waiting w
    union
    select l.queue from leased l
    union
    select e.queue from ended e
  )
  insert into faultline.samples (queue, minute, sampled_at, due, delayed, running, failed, oldest_due_at)
  select
    k.name, date_trunc('minute', began), began, coalesce(w.due, 0), coalesce(w.delayed, 0), coalesce(l.running, 0),
    coalesce(e.failed, 0), w.oldest
  from known k
  left join waiting w on w.queue = k.name
  left join leased l on l.queue = k.name
  left join ended e on e.queue = k.name
  on conflict (queue, minute) do update
  set sampled_at = excluded.sampled_at,
      due = excluded.due,
      delayed = excluded.delayed,
      running = excluded.running,
      failed = excluded.failed,
      oldest_due_at = excluded.oldest_due_at;
  -- Without its row, every worker would count all the time.
  insert into faultline.sampling default values on conflict do nothing;
  update faultline.sampling l
  set sampled_at = began, took_seconds = extract(epoch from faultline.clock() - began);
  return true;
end
$$;
