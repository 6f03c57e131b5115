-- Leave a nudge for each job that waits for the end of these: `call_ids` are in the rows of the ended jobs, `watched` are
-- those that further calls wait for. `failed`: they ended badly, so look for failures too.
--
-- Inserts only, so that no completion waits for a parent. Whether the waiter is suspended is not looked at: it may be
-- about to be, in a transaction that does not see this end.
create or replace function faultline.nudge_waiters(call_ids bigint[], watched uuid[], failed boolean default false)
returns void
language plpgsql volatile
set plan_cache_mode = force_generic_plan
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
begin
  insert into faultline.nudges (job_id, kind)
  select distinct c.job_id, nudge_waiters.failed::integer
  from (
    select u.id from unnest(nudge_waiters.call_ids) as u (id)
    union
    select e.call_id
    from unnest(nudge_waiters.watched) as w (job_id)
    cross join lateral (select e.call_id from faultline.edges e where e.job_id = w.job_id offset 0) e
  ) u
  -- One by one: the planner may take a table for empty, and read all of it first.
  cross join lateral (select c.job_id from faultline.calls c where c.id = u.id offset 0) c;
end
$$;
