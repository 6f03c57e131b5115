-- Cancel a suspended job of a graph: a job that it comes after has ended badly, so it will never run.
-- Before: the caller has locked its row, and the job is queued. After: cancelled; those who wait for it are nudged.
create or replace function faultline.cancel_unreached(job_id uuid) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  job record;
begin
  update faultline.open_jobs j
  set state = 'cancelled',
      finished_at = faultline.clock(),
      suspended = null,
      last_error = 'cancelled: a job that it comes after has failed or was cancelled'
  where j.id = cancel_unreached.job_id
  returning j.id, j.fencing_token, j.call_id, j.watched into job;
  insert into faultline.journal (at, job_id, event, fencing_token, detail)
  values (faultline.clock(), job.id, 'cancelled', job.fencing_token, '{"was": "queued", "reason": "upstream"}');
  perform faultline.nudge_waiters(array[job.call_id], case when job.watched then array[job.id] end, true);
  insert into faultline.sweeps (job_id) values (job.id);
end
$$;
