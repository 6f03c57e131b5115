-- Count queued, running and failed jobs by queue, and store the counts. Returns whether it did. Locks no job.
-- Any number of sessions may call it: one counts at a time, at most every 5 seconds, and less often (up to every 30
-- seconds) if counting takes more than 2 % of the time.
--
-- It reads a bounded number of rows. A queue with up to `exact_max` queued jobs is counted exactly, as long as all queues
-- together have up to twice as many; the rest is estimated from 2,000 pages of the table. These are always the same pages,
-- so that the error of an estimate stays about the same and growth shows. `estimated` names the estimated counts.
--
-- A job that waits in its group is due, though its `next_run_at` lies in the last year: these are counted on their own index.
--
-- An empty queue gets a row if a worker has worked on it within a day, or if its last row was not empty. So a queue
-- without a new row is empty, and its last row says so.
create or replace function faultline.sample(exact_max integer default 100000) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan
set jit = off
set max_parallel_workers_per_gather = 0
set enable_seqscan = off
as $$
declare
  began constant timestamptz := faultline.clock();
begin
  perform faultline.check_most('exact_max', sample.exact_max);
  if not pg_try_advisory_xact_lock(hashtextextended('faultline sample', 0)) then
    return false;
  end if;
  if exists (
    select from faultline.sampling l
    where began >= l.sampled_at
      and began < l.sampled_at + make_interval(secs => least(30, greatest(5, 50 * l.took_seconds)))
  ) then
    return false;
  end if;
  insert into faultline.samples (queue, minute, sampled_at, due, delayed, running, failed, oldest_due_at, estimated)
  select c.queue, date_trunc('minute', began), began, c.due, c.delayed, c.running, c.failed, c.oldest_due_at, c.estimated
  from faultline.count_jobs(began, sample.exact_max) c
  on conflict (queue, minute) do update
  set sampled_at = excluded.sampled_at,
      due = excluded.due,
      delayed = excluded.delayed,
      running = excluded.running,
      failed = excluded.failed,
      oldest_due_at = excluded.oldest_due_at,
      estimated = excluded.estimated;
  -- Restore a missing row: without it, every worker would count all the time.
  insert into faultline.sampling default values on conflict do nothing;
  update faultline.sampling l
  set sampled_at = began, took_seconds = extract(epoch from faultline.clock() - began);
  return true;
end
$$;
