-- Why this job cannot be retried by itself, or null. Before: the caller has locked its flow, and then its row.
-- `is_busy`: another session ends the call of its parent now; ask again.
--
-- A child counts for its parent, so it only runs while its parent can still see how it ends: not after the parent has
-- ended, and not after the parent has gone on past the call, since the result of a call is history.
create or replace function faultline.why_not_retried(job_id uuid, out reason text, out is_busy boolean)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  child record;
  saga text;
  call record;
  parent record;
begin
  is_busy := false;
  select j.id, j.call_id, j.flow_id into child from faultline.open_jobs j where j.id = why_not_retried.job_id;
  if child.flow_id is null then
    return;
  end if;
  if exists (select from faultline.flows f where f.id = child.flow_id and f.pruning) then
    reason := format('job %s belongs to a flow that is being deleted, since its retention time is over', child.id);
    return;
  end if;
  saga := faultline.undone_saga(child.id);
  if child.call_id is null then
    reason := case when saga is not null then format('job %s cannot be retried: the saga of call %s was undone; fork it before call %s', child.id, saga, saga) end;
    return;
  end if;
  select c.job_id, c.ended_at into call from faultline.calls c where c.id = child.call_id for share skip locked;
  if not found then
    is_busy := exists (select from faultline.calls c where c.id = child.call_id);
    if is_busy then
      reason := format('the parent of job %s looks at its children now; try again', child.id);
    end if;
    return;
  end if;
  select j.state into parent from faultline.open_jobs j where j.id = call.job_id;
  reason := case
    when not found then format('job %s is a child of job %s, which has ended; enqueue a new job', child.id, call.job_id)
    when parent.state in ('failed', 'cancelled') then
      format('job %s is a child of job %s, which is %s; retry that job instead: what has succeeded is kept', child.id, call.job_id, parent.state)
    when call.ended_at is not null then
      format('job %s is a child of job %s, which has gone on; fork that job instead', child.id, call.job_id)
    when saga is not null then
      format('job %s cannot be retried: the saga of call %s was undone; fork it before call %s', child.id, saga, saga)
  end;
end
$$;
