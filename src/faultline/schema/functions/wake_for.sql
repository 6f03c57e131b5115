-- Wake workers for jobs that came back to where they had stood: below the bound of everyone who has claimed past them.
create or replace function faultline.wake_for(job_ids uuid[]) returns void
language plpgsql volatile
as $$
begin
  perform faultline.wake(j.queue, min(j.priority), min(j.next_run_at))
  from faultline.open_jobs j
  where j.id = any (wake_for.job_ids) and j.state = 'queued' and j.next_run_at <= faultline.clock()
  group by j.queue;
end
$$;
