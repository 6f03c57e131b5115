-- Cancel queued and running jobs, those with the highest ids first: of a queue, of a task, of a group, in a state; null
-- matches all. Searches at most 10,000 jobs, and cancels at most `max_jobs` of them (up to 1,000). Returns how many were
-- cancelled and, if there may be more, where to continue: pass it as `before_id`. Each is cancelled as by `cancel`, which
-- see. Locked jobs are skipped, so that nobody waits: one that is being claimed, or is in a transaction of its own.
-- With `only_queues`, jobs of other queues are not found. The journal of each job records who did it and why.
create or replace function faultline.cancel_jobs(
  queue text default null,
  task text default null,
  group_key text default null,
  state text default null,
  only_queues text[] default null,
  max_jobs integer default 1000,
  before_id uuid default 'ffffffff-ffff-ffff-ffff-ffffffffffff',
  by text default null,
  reason text default null
) returns table (
  cancelled integer,
  next_id uuid
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  most constant integer := least(greatest(coalesce(cancel_jobs.max_jobs, 0), 0), 1000);
  chosen uuid[];
  locked uuid[];
begin
  with seen as materialized (
    select j.id, j.state, j.queue, j.task, j.group_key, row_number() over (order by j.id desc) as position
    from faultline.open_jobs j
    where j.id < cancel_jobs.before_id
    order by j.id desc
    limit 10000
  ),
  fitting as (
    select s.id, s.position
    from seen s
    where s.state in ('queued', 'running')
      and (cancel_jobs.queue is null or s.queue = cancel_jobs.queue)
      and (cancel_jobs.task is null or s.task = cancel_jobs.task)
      and (cancel_jobs.group_key is null or s.group_key = cancel_jobs.group_key)
      and (cancel_jobs.state is null or s.state = cancel_jobs.state)
      and (cancel_jobs.only_queues is null or s.queue = any (cancel_jobs.only_queues))
    order by s.position
    limit most
  )
  select
    array(select f.id from fitting f),
    coalesce(
      (select f.id from fitting f order by f.position offset greatest(most - 1, 0) limit 1),
      (select s.id from seen s where s.position = 10000)
    )
  into chosen, next_id;
  -- Check again under the lock: the job may have ended meanwhile, have been claimed, or have been put into another group by a
  -- unique submission that replaced it.
  locked := array(
    select j.id
    from faultline.open_jobs j
    where j.id = any (chosen)
      and j.state in ('queued', 'running')
      and (cancel_jobs.state is null or j.state = cancel_jobs.state)
      and (cancel_jobs.group_key is null or j.group_key = cancel_jobs.group_key)
    order by j.id
    for update skip locked
  );
  perform faultline.cancel(l.id, cancel_jobs.reason, by => cancel_jobs.by) from unnest(locked) as l (id);
  cancelled := cardinality(locked);
  return next;
end
$$;
