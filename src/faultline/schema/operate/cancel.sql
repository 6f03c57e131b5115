-- Cancel a job. Returns its state: `cancelled`, or `queued` if it undoes its sagas first.
-- Before: queued or running. After: cancelled, no owner: every verb refuses the worker that runs it with `not_running`.
-- The worker learns of it by a notification, or at its next renewal. The open children of the job are swept.
-- Waits while the job's own transaction locks the row, and raises FL002 if that completes the job. With `only_queues`,
-- a job of any other queue is not found. The journal records who did it and why: see signature.
-- With `undo`, a job with a saga that it has not left is then queued again, to undo it, and ends as cancelled: see begin_undo. So
-- are its children. That holds for a job that was cancelled before, too.
create or replace function faultline.cancel(
  job_id uuid,
  reason text default null,
  only_queues text[] default null,
  by text default null,
  undo boolean default false
) returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan
as $$
#variable_conflict use_column
declare
  job record;
  signed constant jsonb := faultline.signature(cancel.by, cancel.reason);
begin
  perform faultline.require_synchronous_commit();
  select j.state, j.fencing_token, j.lease_owner, j.claimed_at, j.lease_expires_at, j.renewals, j.flow_id, j.watched
  into job
  from faultline.open_jobs j
  where j.id = cancel.job_id and (cancel.only_queues is null or j.queue = any (cancel.only_queues))
  for update;
  if not found then
    perform faultline.not_open(cancel.job_id, 'cancelled', cancel.only_queues);
  elsif job.state = 'failed' then
    raise exception 'job % has failed and cannot be cancelled', cancel.job_id
      using errcode = 'FL002', hint = 'undo it, if what its sagas have begun is to be undone';
  elsif job.state = 'cancelled' and cancel.undo and job.flow_id is not null then
    -- It was cancelled without that before.
    insert into faultline.sweeps (job_id, reason) values (cancel.job_id, 'undo');
    perform faultline.wake_resolvers();
    if faultline.begin_undo(cancel.job_id, signed) then
      return 'queued';
    end if;
  elsif job.state in ('queued', 'running') then
    update faultline.open_jobs j
    set state = 'cancelled',
        finished_at = faultline.clock(),
        last_error = 'cancelled' || coalesce(': ' || cancel.reason, ''),
        lease_owner = null,
        lease_expires_at = null,
        suspended = null
    where j.id = cancel.job_id;
    insert into faultline.journal (at, job_id, event, fencing_token, owner, detail)
    values (
      faultline.clock(), cancel.job_id, 'cancelled', job.fencing_token, job.lease_owner,
      jsonb_build_object('was', job.state) || signed || case job.state
        when 'running' then faultline.lease_details(job.claimed_at, job.lease_expires_at, job.renewals) else '{}'
      end
    );
    if job.flow_id is not null or job.watched then
      perform faultline.end_badly(array[cancel.job_id], case when cancel.undo then 'undo' end);
      perform faultline.wake_resolvers();
    end if;
    if job.state = 'running' and coalesce(current_setting('faultline.notify', true), '') <> 'off' then
      perform pg_notify('faultline', json_build_object('cancelled', cancel.job_id)::text);
    end if;
    if cancel.undo and job.flow_id is not null and faultline.begin_undo(cancel.job_id, signed) then
      return 'queued';
    end if;
  end if;
  return 'cancelled';
end
$$;
