-- Wake workers for requeued jobs: their positions are below the bounds of workers that have claimed past them.
create or replace function faultline.wake_for(job_ids uuid[]) returns void
language plpgsql volatile
set jit = off
set enable_seqscan = off
as $$
begin
  perform faultline.wake(k.queue, min(k.priority), min(k.next_run_at))
  -- By id only: with the state in this query, the planner may scan all queued jobs.
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
