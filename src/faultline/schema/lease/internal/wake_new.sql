-- Wake workers for jobs that were just inserted, as `enqueue_many` does: a few of those that sleep, or all if the jobs may
-- be below the positions up to which workers have claimed already.
-- `queues` are those of the jobs, `lowest_priority` and `lowest_run_at` the lowest of them, `at` the time of the insertion.
create or replace function faultline.wake_new(
  queues text[], lowest_priority integer, lowest_run_at timestamptz, at timestamptz, jobs integer
) returns void
language plpgsql volatile
as $$
declare
  late constant boolean := statement_timestamp() - transaction_timestamp() > interval '5 milliseconds'
    or clock_timestamp() - statement_timestamp() > interval '50 milliseconds';
begin
  if lowest_run_at > at then
    return;
  end if;
  perform faultline.wake(q.name, lowest_priority, least(lowest_run_at, transaction_timestamp()), q.chosen)
  from (
    select
      served.name,
      case when wake_new.lowest_run_at = wake_new.at and not late and wake_new.jobs <= 20 then
        (array_agg(w.id order by random()) filter (
          where w.heartbeat_at > wake_new.at - interval '3 seconds' and octet_length(to_json(w.id)::text) <= 100
        ))[:wake_new.jobs + 2]
      end as chosen
    from faultline.workers w cross join unnest(w.queues) as served (name)
    where served.name = any (wake_new.queues)
      and (served.name = any (w.sleeping) or wake_new.lowest_run_at < wake_new.at or late)
    group by served.name
  ) q;
end
$$;
