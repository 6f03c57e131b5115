-- Cancel open children of jobs that have ended badly, and of calls that were closed: at most `max_jobs` of them, so that
-- a tree of any size takes many short transactions. Returns how many sweeps are left that can go on now.
-- Before: queued or running. After: cancelled, no owner; those who wait for them are nudged, and their own children are
-- swept too, however deep. Never waits for a lock: a locked child is come back to.
--
-- The children of a call that was closed, and of a job that was cancelled with `undo`, are queued again to undo their sagas. Those of
-- another job stay as they are: a retry of the job goes on with them.
--
-- A sweep is dropped if its job was retried meanwhile: the lock of that job's row decides which was first.
-- Only a call's own children are cancelled, not jobs that it only waits for.
create or replace function faultline.sweep(max_jobs integer default 500) returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set jit = off
set max_parallel_workers_per_gather = 0
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  remaining integer := least(greatest(coalesce(sweep.max_jobs, 0), 1), 10000);
  previous bigint := 0;
  -- Sweeps that have come to their end and go back to what was locked before this call.
  going_back integer := 0;
  swept record;
  -- The end of this bite, and what was locked in it.
  bite record;
  ended record;
begin
  perform faultline.read_committed('sweep');
  if not exists (select from faultline.sweeps) then
    return 0;
  end if;
  perform faultline.require_synchronous_commit();
  perform faultline.set_current_verb('sweep');
  while remaining > 0 loop
    select s.* into swept
    from faultline.sweeps s
    where s.id > previous
    order by s.id
    limit 1
    for update skip locked;
    exit when not found;
    previous := swept.id;
    remaining := remaining - 1;
    if swept.call_id is null then
      perform from faultline.open_jobs j where j.id = swept.job_id for update skip locked;
      if not found and exists (select from faultline.open_jobs j where j.id = swept.job_id) then
        continue;
      end if;
    end if;
    if not faultline.is_swept(swept.job_id, swept.call_id) then
      delete from faultline.sweeps s where s.id = swept.id;
      continue;
    end if;
    select * into bite
    from faultline.cancel_children_batch(swept.job_id, swept.call_id, swept.at_call, swept.at_index, remaining, swept.reason is not null);
    remaining := remaining - bite.edges;
    going_back := going_back + (bite.is_last and swept.missed_call is not null)::integer;
    if bite.missed_call is not null and swept.missed_call is null then
      swept.missed_call := bite.missed_call;
      swept.missed_index := bite.missed_index;
    end if;
    if not bite.is_last then
      update faultline.sweeps s
      set at_call = bite.at_call,
          at_index = bite.at_index,
          missed_call = swept.missed_call,
          missed_index = swept.missed_index
      where s.id = swept.id;
    elsif swept.missed_call is not null then
      update faultline.sweeps s
      set at_call = swept.missed_call,
          at_index = swept.missed_index - 1,
          missed_call = null,
          missed_index = null
      where s.id = swept.id;
    else
      delete from faultline.sweeps s where s.id = swept.id;
    end if;
  end loop;
  perform faultline.set_current_verb('');
  if remaining > 0 then
    return going_back;
  end if;
  return (select count(*) from (select from faultline.sweeps s limit 1000) l);
end
$$;
