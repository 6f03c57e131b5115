-- Wake workers for jobs that came back to where they had stood: below the bound of everyone who has claimed past them.
create or replace function faultline.wake_for(job_ids uuid[]) returns void
language plpgsql volatile
as $$
begin
  perform faultline.wake(k.queue, min(k.priority), min(k.next_run_at))
  -- By their ids and nothing else: naming the state here would let the planner look through all that waits.
  from (
    select j.queue, j.priority, j.next_run_at, j.state
    from faultline.open_jobs j
    where j.id = any (wake_for.job_ids)
    offset 0
  ) k
  where k.state = 'queued' and k.next_run_at <= faultline.clock()
  group by k.queue;
end
$$;
