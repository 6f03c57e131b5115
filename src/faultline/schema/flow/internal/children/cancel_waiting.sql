-- Cancel a suspended job that can never go on. Before: the caller has locked its row, and the job is queued.
-- After: cancelled; those who wait for it are nudged, and its open children are swept.
create or replace function faultline.cancel_waiting(job_id uuid, error text, why jsonb) returns void
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
      last_error = cancel_waiting.error
  where j.id = cancel_waiting.job_id
  returning j.id, j.fencing_token into job;
  insert into faultline.journal (at, job_id, event, fencing_token, detail)
  values (faultline.clock(), job.id, 'cancelled', job.fencing_token, jsonb_build_object('was', 'queued') || why);
  perform faultline.end_badly(array[job.id]);
end
$$;
