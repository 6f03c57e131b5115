-- Queue a job again that has failed or was cancelled, to undo what its sagas have begun. Returns false, and changes nothing, if it has
-- begun none that it has not left, or was undone. Before: the caller has locked its row.
-- After: queued, due now, with attempts counted from zero; its open sagas have failed, which is history: see only_undo. When they are
-- undone, the job ends as it had ended. The token stays, so that writes of earlier workers are refused.
-- A saga that had failed before is enough: an undo of it has failed. What is undone is not undone again.
create or replace function faultline.begin_undo(job_id uuid, signed jsonb) returns boolean
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  job record;
begin
  if faultline.undone_saga(begin_undo.job_id) is not null or not exists (
    select from faultline.calls c
    where c.job_id = begin_undo.job_id and c.kind = 'saga' and c.outcome is distinct from 'done'
  ) then
    return false;
  end if;
  select j.state, j.last_error, j.fencing_token into job from faultline.open_jobs j where j.id = begin_undo.job_id;
  update faultline.calls c
  set ended_at = faultline.clock(),
      ended_moment = nextval(pg_get_serial_sequence('faultline.calls', 'id')),
      outcome = 'failed',
      error = split_part(coalesce(job.last_error, job.state), E'\n', 1),
      result = case job.state when 'cancelled' then '{"then": "cancel"}'::jsonb end
  where c.job_id = begin_undo.job_id and c.kind = 'saga' and c.ended_at is null;
  perform faultline.only_undo(begin_undo.job_id, more_attempts => false);
  update faultline.open_jobs j
  set state = 'queued',
      next_run_at = faultline.clock(),
      suspended = null,
      attempt = 0,
      reaps = 0,
      started = false,
      finished_at = null,
      last_error = null,
      stopped_by = null,
      -- However late: what was begun is to be undone.
      expires_at = null
  where j.id = begin_undo.job_id;
  insert into faultline.journal (at, job_id, event, fencing_token, detail)
  values (
    faultline.clock(), begin_undo.job_id, 'undo_begun', job.fencing_token,
    jsonb_build_object('was', job.state) || begin_undo.signed
  );
  perform faultline.wake_for(array[begin_undo.job_id]);
  return true;
end
$$;
