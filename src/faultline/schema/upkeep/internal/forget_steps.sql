-- Delete what is stored for jobs of no flow that are deleted: steps, signals that they did not receive, streams. Null: no jobs.
-- Before: `faultline.verb` is prune.
create or replace function faultline.forget_steps(job_ids uuid[]) returns void
language plpgsql volatile
as $$
begin
  if forget_steps.job_ids is null then
    return;
  end if;
  delete from faultline.steps s where s.job_id = any (forget_steps.job_ids);
  -- A job that received none of its signals is in no flow.
  if exists (select from faultline.signals) then
    delete from faultline.signals s where s.job_id = any (forget_steps.job_ids);
  end if;
  if exists (select from faultline.streams) then
    delete from faultline.streams s where s.job_id = any (forget_steps.job_ids);
  end if;
end
$$;
