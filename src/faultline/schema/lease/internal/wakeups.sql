-- Hints to workers: that a queue may have due jobs. A lost hint costs a poll.

-- Notify the chosen workers, or all, that the queue may have due jobs from this position on.
-- `job_ids` are new jobs, where there are only a few: a worker that has claimed them before it hears of them need not look.
-- The first of the chosen look at once, one for each job; the others stand by in case one of those is busy.
-- Only a hint: workers poll anyway. A transaction can switch it off by `set local faultline.notify = off`: PostgreSQL
-- cannot prepare one that has sent a notification for two-phase commit.
create or replace function faultline.wake(
  queue text, priority integer, run_at timestamptz, chosen text[] default null, job_ids uuid[] default null
) returns void
language sql volatile
as $$
  select pg_notify(
    'faultline',
    json_strip_nulls(json_build_object(
      'queue', queue, 'priority', priority, 'run_at', run_at, 'workers', chosen,
      'ids', case when chosen is not null then job_ids end
    ))::text
  )
  where coalesce(current_setting('faultline.notify', true), '') <> 'off';
$$;

-- Wake workers for requeued jobs: their positions are below the bounds of workers that have claimed past them.
create or replace function faultline.wake_for(job_ids uuid[]) returns void
language plpgsql volatile
set jit = off
set enable_seqscan = off
as $$
begin
  perform faultline.wake(k.queue, min(k.priority), min(k.next_run_at))
  -- By id only: with the state in this query, the planner may scan all queued jobs.
  from (
    select j.queue, j.priority, j.next_run_at, j.state
    from faultline.open_jobs j
    where j.id = any (wake_for.job_ids)
    offset 0
  ) k
  where k.state = 'queued' and k.next_run_at <= faultline.clock()
  group by k.queue;
end
$$;

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

-- Wake one worker that sleeps on a queue, any but this one. Returns whether there is one.
create or replace function faultline.wake_one(queue text, but_not text default '') returns boolean
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  sleeper text;
begin
  select w.id into sleeper
  from faultline.workers w
  where wake_one.queue = any (w.sleeping) and w.id <> wake_one.but_not
    and w.heartbeat_at > faultline.clock() - interval '3 seconds' and octet_length(to_json(w.id)::text) <= 100
  order by random()
  limit 1;
  if not found then
    return false;
  end if;
  perform faultline.wake(wake_one.queue, -32768, transaction_timestamp(), array[sleeper]);
  return true;
end
$$;
