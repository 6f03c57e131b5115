-- Wake workers for jobs that came back to where they had stood: below the bound of everyone who has claimed past them.
create or replace function faultline.wake_for(job_ids uuid[]) returns void
language plpgsql volatile
as $$
begin
  perform faultline.wake(j.queue, min(j.priority), min(j.next_run_at))
  -- By id, and only then by state: an index of the waiting jobs would be walked whole where the planner takes it for empty.
  from (select * from faultline.open_jobs o where o.id = any (wake_for.job_ids) offset 0) j
  where j.state = 'queued' and j.next_run_at <= faultline.clock()
  group by j.queue;
end
$$;
