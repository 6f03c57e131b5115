-- Give a job that ended badly another chance. Answers with its state, `queued`.
-- Before: failed or cancelled. After: queued and due now, its attempts counted from zero. The token is not reset: it only
-- ever grows, so whoever ran the job in its first life stays locked out of its second.
create or replace function faultline.retry(job_id uuid) returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan
as $$
#variable_conflict use_column
declare
  job record;
begin
  perform faultline.durable();
  select j.state, j.fencing_token into job
  from faultline.open_jobs j
  where j.id = retry.job_id
  for update;
  if not found then
    perform faultline.not_open(retry.job_id, 'retried');
  elsif job.state in ('queued', 'running') then
    raise exception 'job % is %; only a failed or cancelled job can be retried', retry.job_id, job.state
      using errcode = 'FL002';
  end if;
  update faultline.open_jobs j
  set state = 'queued',
      next_run_at = faultline.clock(),
      attempt = 0,
      reaps = 0,
      started = false,
      finished_at = null,
      last_error = null
  where j.id = retry.job_id;
  insert into faultline.journal (at, job_id, event, fencing_token, detail)
  values (faultline.clock(), retry.job_id, 'retried', job.fencing_token, jsonb_build_object('was', job.state));
  perform faultline.wake_for(array[retry.job_id]);
  return 'queued';
end
$$;
