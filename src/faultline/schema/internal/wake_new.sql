-- Wake workers for jobs that were enqueued by a verb of its own transaction, as `enqueue_many` does: a few of those that sleep, or
-- all if the jobs may stand below the place where workers have claimed already.
create or replace function faultline.wake_new(job_ids uuid[], at timestamptz) returns void
language plpgsql volatile
set plan_cache_mode = force_generic_plan
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
  late constant boolean := statement_timestamp() - transaction_timestamp() > interval '5 milliseconds'
    or clock_timestamp() - statement_timestamp() > interval '50 milliseconds';
  few constant boolean := cardinality(wake_new.job_ids) <= 20;
  lowest record;
begin
  for lowest in
    select j.queue, min(j.priority) as priority, min(j.next_run_at) as run_at
    from unnest(wake_new.job_ids) as u (id)
    -- Looked up one by one, as in `complete`.
    join faultline.open_jobs j on j.id = any (array[u.id])
    where j.next_run_at <= wake_new.at
    group by j.queue
  loop
    perform faultline.wake(lowest.queue, lowest.priority, least(lowest.run_at, transaction_timestamp()), w.chosen)
    from (
      select
        case when few and not late and lowest.run_at = wake_new.at then
          (array_agg(w.id order by random()) filter (
            where w.beat_at > wake_new.at - interval '3 seconds' and octet_length(to_json(w.id)::text) <= 100
          ))[:cardinality(wake_new.job_ids) + 2]
        end as chosen
      from faultline.workers w
      where lowest.queue = any (w.queues)
        and (lowest.queue = any (w.sleeping) or late or lowest.run_at < wake_new.at)
      having count(*) > 0
    ) w;
  end loop;
end
$$;
