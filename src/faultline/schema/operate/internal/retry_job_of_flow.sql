-- Retry one failed job of a flow, unless something keeps it from being retried. Returns whether it is open again: it may be so
-- already, started over with another job. Before: the caller has locked its flow, and then its row.
create or replace function faultline.retry_job_of_flow(job_id uuid, signed jsonb) returns boolean
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  if not exists (select from faultline.open_jobs j where j.id = retry_job_of_flow.job_id and j.state = 'failed') then
    return true;
  elsif (select w.reason from faultline.why_not_retried(retry_job_of_flow.job_id) w) is not null then
    return false;
  end if;
  perform faultline.requeue_ended_jobs(array[retry_job_of_flow.job_id], signed);
  return true;
exception
  when sqlstate 'FL002' or lock_not_available then
    return false;
end
$$;
