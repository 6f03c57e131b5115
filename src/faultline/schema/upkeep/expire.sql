-- Cancel queued jobs that nobody has claimed before they expired. Returns them.
-- Before: queued, never claimed. After: cancelled; those who wait for them are nudged, and the journal says when they expired.
-- A job that was claimed once no longer expires: it may have done half of its work. Until this verb comes to a job that has
-- expired, `claim` passes over it. Locked jobs are skipped: one that is being claimed is claimed.
create or replace function faultline.expire(max_jobs integer default 1000) returns table (
  job_id uuid,
  queue text,
  task text
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set jit = off
set max_parallel_workers_per_gather = 0
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  at constant timestamptz := faultline.clock();
  ids uuid[];
  queues text[];
  tasks text[];
  ended_badly uuid[];
begin
  -- Every worker asks every second, and there is rarely anything to do: then this one probe is all it costs.
  if not exists (
    select from faultline.open_jobs e
    where e.state = 'queued' and e.expires_at is not null and e.fencing_token = 0 and e.expires_at <= at
  ) then
    return;
  end if;
  perform faultline.require_synchronous_commit();
  with late as materialized (
    select r.ctid
    from faultline.open_jobs r
    where r.state = 'queued' and r.expires_at is not null and r.fencing_token = 0 and r.expires_at <= at
    order by r.expires_at
    limit least(greatest(coalesce(expire.max_jobs, 0), 0), 10000)
    for update skip locked
  ),
  ended as (
    update faultline.open_jobs j
    set state = 'cancelled',
        finished_at = at,
        suspended = null,
        last_error = 'expired: no worker had claimed it by ' || to_char(j.expires_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')
    from late l
    where j.ctid = l.ctid
    returning j.id, j.queue, j.task, j.fencing_token, j.expires_at, j.flow_id, j.watched
  ),
  recorded as (
    insert into faultline.journal (at, job_id, event, fencing_token, detail)
    select at, e.id, 'expired', e.fencing_token, jsonb_build_object('was', 'queued', 'expires_at', e.expires_at)
    from ended e
    order by e.id
  )
  select
    array_agg(e.id), array_agg(e.queue::text), array_agg(e.task::text),
    array_agg(e.id) filter (where e.flow_id is not null or e.watched)
  into ids, queues, tasks, ended_badly
  from ended e;
  if ended_badly is not null then
    perform faultline.end_badly(ended_badly);
  end if;
  return query select * from unnest(ids, queues, tasks);
end
$$;
