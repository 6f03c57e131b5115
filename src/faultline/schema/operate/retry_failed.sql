-- Retry failed jobs, the last failed first: of a queue, of a task, with an error that begins with a text or is of a
-- kind (see error_kind); null matches all. Searches at most 10,000 failed and cancelled jobs, and retries at most
-- `max_jobs` of them (up to 1,000). Returns how many were retried, how many were not since that cannot help (see retry), and, if there may be more, where to continue: pass it
-- as `before_at` and `before_id`. Locked jobs are skipped, and children that cannot be retried (see retry). With `only_queues`, jobs of other queues are not found.
-- The journal of each job records who did it and why: see signature.
create or replace function faultline.retry_failed(
  queue text default null,
  task text default null,
  error_prefix text default null,
  error_kind text default null,
  only_queues text[] default null,
  max_jobs integer default 1000,
  before_at timestamptz default 'infinity',
  before_id uuid default 'ffffffff-ffff-ffff-ffff-ffffffffffff',
  by text default null,
  reason text default null
) returns table (
  retried integer,
  refused integer,
  next_at timestamptz,
  next_id uuid
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  most constant integer := least(greatest(coalesce(retry_failed.max_jobs, 0), 0), 1000);
  chosen uuid[];
  flows uuid[];
  locked uuid[];
  plain uuid[];
  job uuid;
  signed constant jsonb := faultline.signature(retry_failed.by, retry_failed.reason);
begin
  perform faultline.require_synchronous_commit();
  with seen as materialized (
    select
      j.id, j.state, j.finished_at, j.queue, j.task, j.last_error,
      row_number() over (order by j.finished_at desc, j.id desc) as position
    from faultline.open_jobs j
    where j.state in ('failed', 'cancelled')
      and j.finished_at <= retry_failed.before_at
      and (j.finished_at, j.id) < (retry_failed.before_at, retry_failed.before_id)
    order by j.finished_at desc, j.id desc
    limit 10000
  ),
  fitting as (
    select s.id, s.finished_at, s.position
    from seen s
    where s.state = 'failed'
      and (retry_failed.queue is null or s.queue = retry_failed.queue)
      and (retry_failed.task is null or s.task = retry_failed.task)
      and (retry_failed.error_prefix is null or starts_with(s.last_error, retry_failed.error_prefix))
      and (retry_failed.error_kind is null or faultline.error_kind(s.last_error) = retry_failed.error_kind)
      and (retry_failed.only_queues is null or s.queue = any (retry_failed.only_queues))
    order by s.position
    limit most
  )
  select
    array(select f.id from fitting f),
    coalesce(full_batch.finished_at, full_window.finished_at),
    coalesce(full_batch.id, full_window.id)
  into chosen, next_at, next_id
  from (select 1) as one
  left join lateral (select f.finished_at, f.id from fitting f order by f.position offset greatest(most - 1, 0) limit 1)
    full_batch on true
  left join seen full_window on full_window.position = 10000;
  -- Before the jobs, as in `retry`. Of those that are locked, another session retries jobs.
  flows := array(
    select f.id
    from faultline.flows f
    where f.id = any (array(select j.flow_id from faultline.open_jobs j where j.id = any (chosen)))
    order by f.id
    for no key update skip locked
  );
  if cardinality(flows) > 0 then
    perform faultline.read_committed('retry of a job of a flow');
  end if;
  -- Check the state again under the lock: another session may have retried the job meanwhile.
  locked := array(
    select j.id
    from faultline.open_jobs j
    where j.id = any (chosen) and j.state = 'failed' and (j.flow_id is null or j.flow_id = any (flows))
    order by j.id
    for update skip locked
  );
  refused := 0;
  plain := array(select j.id from faultline.open_jobs j where j.id = any (locked) and j.flow_id is null);
  perform faultline.requeue_ended_jobs(plain, signed);
  retried := cardinality(plain);
  -- One by one: what keeps one from being retried is no reason for the others.
  foreach job in array array(select l.id from unnest(locked) as l (id) where l.id <> all (plain)) loop
    if faultline.retry_job_of_flow(job, signed) then
      retried := retried + 1;
    else
      refused := refused + 1;
    end if;
  end loop;
  return next;
end
$$;
