-- Make jobs due that wait because their program did not fit other code: a worker with this code has started. Returns how many.
-- Before: queued, of one of these queues and tasks, and the last that the journal has of it is `program_changed`.
-- After: due.
--
-- A hint, which saves up to ten minutes. It reads 10,000 delayed jobs of each queue and priority at most, and passes over rows
-- that are locked: what it does not find is tried in its time.
create or replace function faultline.wake_changed_programs(
  queues text[],
  tasks text[],
  code text
) returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set jit = off
set max_parallel_workers_per_gather = 0
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  at constant timestamptz := faultline.clock();
  wanted text;
  level integer;
  found_ids uuid[];
  due_ids uuid[] := '{}';
begin
  foreach wanted in array wake_changed_programs.queues loop
    level := -32768;
    loop
      select j.priority into level
      from faultline.open_jobs j
      where j.queue = wanted and j.state = 'queued' and j.priority > level
      order by j.priority
      limit 1;
      exit when not found;
      found_ids := array(
        select d.id
        from (
          select r.id, r.task, r.flow_id
          from faultline.open_jobs r
          where r.queue = wanted
            and r.state = 'queued'
            and r.priority = level
            and r.next_run_at > at
            -- Pauses are ten minutes and a little more.
            and r.next_run_at < at + interval '15 minutes'
          order by r.next_run_at, r.id
          limit 10000
        ) d
        where d.flow_id is not null
          and d.task = any (wake_changed_programs.tasks)
          and (
            select case when e.event = 'program_changed' then e.detail ->> 'code' <> wake_changed_programs.code end
            from faultline.journal e
            where e.job_id = d.id
            order by e.id desc
            limit 1
          )
      );
      continue when found_ids = '{}';
      with held as materialized (
        select j.ctid
        from faultline.open_jobs j
        where j.id = any (found_ids)
          -- Said so that no other index fits.
          and coalesce(j.state, '') = 'queued'
          and j.suspended is null
          and j.in_group is null
        for update skip locked
      ),
      made as (
        update faultline.open_jobs j set next_run_at = at where j.ctid = any (array(select h.ctid from held h)) returning j.id
      )
      select due_ids || array_agg(m.id) into due_ids from made m;
    end loop;
  end loop;
  perform faultline.wake_for(due_ids);
  return cardinality(due_ids);
end
$$;
