-- Whether the open children of this job, or of this one of its calls, are to be cancelled: the job has ended badly or only
-- undoes, or the call was closed. Before: the caller has locked the job's row, unless it asks for a call, which never opens again.
create or replace function faultline.is_swept(job_id uuid, call_id bigint) returns boolean
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  if is_swept.call_id is not null then
    return exists (select from faultline.calls c where c.id = is_swept.call_id and c.outcome = 'closed');
  end if;
  return exists (
    select
    from faultline.open_jobs j
    where j.id = is_swept.job_id
      and (j.state in ('failed', 'cancelled') or exists (
        select from faultline.calls c where c.job_id = j.id and c.kind = 'saga' and c.outcome = 'failed'
      ))
  );
end
$$;
