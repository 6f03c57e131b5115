-- Raise FL002 if this job of a graph, which comes after one that is retried, cannot run again: it runs now, with the failure
-- of that one; or it has succeeded, and its arguments were not kept.
create or replace function faultline.refuse_behind(job_id uuid) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  job record;
begin
  select j.state, j.suspended, c.awaited, c.ended_at into job
  from faultline.open_jobs j
  join faultline.calls c on c.job_id = j.id and c.number = '0' and c.kind = 'after'
  where j.id = refuse_behind.job_id;
  if not found then
    if exists (select from faultline.ledger f where f.job_id = refuse_behind.job_id and f.args is null) then
      raise exception 'job % comes after a job that would be retried, has succeeded with its failure, and cannot run again: its arguments were not kept',
        refuse_behind.job_id
        using errcode = 'FL002', hint = 'enqueue the graph again';
    end if;
  elsif job.state in ('queued', 'running') and not (coalesce(job.suspended, false) and job.awaited and job.ended_at is null) then
    raise exception 'job % comes after a job that would be retried, and runs now with its failure', refuse_behind.job_id
      using errcode = 'FL002', hint = 'cancel it, or retry when it has ended';
  end if;
end
$$;
