-- Undo the sagas of a job that has failed or was cancelled. Returns its state, `queued`.
-- Before: failed or cancelled, with a saga that it has not left. After: see begin_undo. Its program is run from the top: what is
-- recorded is read, nothing else is called, and the undos run. Then the job ends as it had ended.
-- A child may be undone although its parent has ended. With `only_queues`, a job of any other queue is not found.
-- The journal records who did it and why: see signature.
create or replace function faultline.undo(
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
  job record;
  signed constant jsonb := faultline.signature(undo.by, undo.reason);
begin
  -- With an older view, its flow may be deleted.
  perform faultline.read_committed('undo');
  perform faultline.require_synchronous_commit();
  select j.state, j.flow_id into job
  from faultline.open_jobs j
  where j.id = undo.job_id and (undo.only_queues is null or j.queue = any (undo.only_queues))
  for update;
  if not found then
    perform faultline.not_open(undo.job_id, 'undone', undo.only_queues);
  elsif job.state in ('queued', 'running') then
    raise exception 'job % is %; only a failed or cancelled job can be undone', undo.job_id, job.state
      using errcode = 'FL002', hint = 'cancel it, and undo it then';
  end if;
  -- So that `prune` leaves the flow alone meanwhile, and then finds it live.
  perform from faultline.flows f where f.id = job.flow_id and not f.pruning for key share skip locked;
  if not found and exists (select from faultline.flows f where f.id = job.flow_id) then
    raise exception 'the flow of job % is locked, since prune looks at it or deletes it; try again', undo.job_id
      using errcode = '55P03';
  end if;
  if not faultline.begin_undo(undo.job_id, signed) then
    raise exception 'job % has nothing to undo: it has begun no saga, has left each of them, or was undone', undo.job_id
      using errcode = 'FL002';
  end if;
  return 'queued';
end
$$;
