-- Let a job that this transaction has enqueued wait until another has ended, whichever way: the tick of a schedule that lets one
-- run at a time. It waits as a job of a graph does that comes after one, so whatever ends the other wakes it: also a worker's
-- death, a failover, a person. It keeps no time of its own.
-- Returns false, and nothing is written, if the other is locked: whoever ends it at this moment would not see that it is waited
-- for. So too if it is not open: it has just ended, or it was the root of a flow of which the last jobs are being cancelled.
create or replace function faultline.wait_behind(job_id uuid, earlier uuid) returns boolean
language plpgsql volatile
set plan_cache_mode = force_generic_plan
set jit = off
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
  call bigint;
begin
  perform from faultline.open_jobs j
  where j.id = wait_behind.earlier and j.state in ('queued', 'running')
  for update skip locked;
  if not found then
    return false;
  end if;
  update faultline.open_jobs j set watched = true where j.id = wait_behind.earlier and j.watched is not true;
  update faultline.open_jobs j
  set suspended = true, next_run_at = '9999-01-01Z', in_group = null, group_at = null
  where j.id = wait_behind.job_id;
  perform faultline.join_flow(wait_behind.job_id);
  insert into faultline.calls (job_id, number, kind, name, fencing_token, begun_at, awaited, policy, total, spawned)
  values (wait_behind.job_id, '0', 'after', 'the job of an earlier tick', 0, faultline.clock(), true, 'run', 1, 1)
  returning id into call;
  insert into faultline.edges (call_id, index, job_id) values (call, 0, wait_behind.earlier);
  return true;
end
$$;
