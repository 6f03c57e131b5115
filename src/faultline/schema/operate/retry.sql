-- Retry a failed or cancelled job. Returns its state: `queued`, or `cancelled` if another job waits under its unique key.
-- Before: failed or cancelled. After: see requeue_ended_jobs. With `only_queues`, a job of any other queue is not found.
-- A child is refused (FL002) if its parent has ended or has gone on past it. With a parent, its children start over.
-- The journal records who did it and why: see signature.
create or replace function faultline.retry(
  job_id uuid,
  only_queues text[] default null,
  by text default null,
  reason text default null
) returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan
as $$
#variable_conflict use_column
declare
  flow constant uuid := (select j.flow_id from faultline.open_jobs j where j.id = retry.job_id);
  state text;
  refused record;
  signed constant jsonb := faultline.signature(retry.by, retry.reason);
begin
  perform faultline.require_synchronous_commit();
  if flow is not null then
    -- With an older view, its parent may have ended, and its flow be deleted.
    perform faultline.read_committed('retry of a job of a flow');
    -- Before the job: one retry locks many jobs of a flow, so that of each flow one comes after the other. `prune` waits too.
    perform from faultline.flows f where f.id = flow for no key update;
  end if;
  select j.state into state
  from faultline.open_jobs j
  where j.id = retry.job_id and (retry.only_queues is null or j.queue = any (retry.only_queues))
  for update;
  if not found then
    perform faultline.not_open(retry.job_id, 'retried', retry.only_queues);
  elsif state in ('queued', 'running') then
    raise exception 'job % is %; only a failed or cancelled job can be retried', retry.job_id, state
      using errcode = 'FL002';
  end if;
  refused := faultline.why_not_retried(retry.job_id);
  if refused.reason is not null then
    raise exception '%', refused.reason using errcode = case when refused.is_busy then '55P03' else 'FL002' end;
  end if;
  perform faultline.requeue_ended_jobs(array[retry.job_id], signed);
  return (select j.state from faultline.open_jobs j where j.id = retry.job_id);
end
$$;
