-- The queues among these that have a due job, without paused queues. One query for all queues on which a worker is
-- idle, instead of a claim for each. A hint: another worker may claim the job first.
--
-- The bounds are hints, and the priorities are scanned one by one, both as in `claim`. A bound is an element of
-- `bound_queues`, `priorities`, `lower_bounds` and `lower_ids`; bounds are in the order of `queues`, then of their
-- priorities.
create or replace function faultline.due(
  queues text[],
  bound_queues text[] default '{}',
  priorities integer[] default '{}',
  lower_bounds timestamptz[] default '{}',
  lower_ids uuid[] default '{}'
) returns setof text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set jit = off
set max_parallel_workers_per_gather = 0
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
as $$
#variable_conflict use_column
declare
  at constant timestamptz := faultline.now();
  wanted text;
  next_known integer := 1;
  is_known boolean;
  previous integer;
  level integer;
  lower_bound timestamptz;
  lower_id uuid;
  -- Of a queue with limits, only its own accounts know.
  limited constant text[] := array(select q.name from faultline.queues q where q.limited and q.name = any (due.queues));
begin
  foreach wanted in array due.queues loop
    previous := -32768;
    if wanted = any (limited) then
      if faultline.next_claim_at(wanted) <= at then
        return next wanted;
      end if;
    end if;
    loop
      exit when wanted = any (limited);
      is_known := coalesce(due.bound_queues[next_known] = wanted, false);
      -- The next priority with queued jobs: one that the caller gave no bound for, below the next one that it did.
      select j.priority into level
      from faultline.open_jobs j
      where j.queue = wanted
        and j.state = 'queued'
        and j.priority > previous
        and j.priority < case when is_known then due.priorities[next_known] else 32767 end
      order by j.priority
      limit 1;
      if found then
        lower_bound := '-infinity';
      elsif is_known then
        level := due.priorities[next_known];
        lower_bound := coalesce(due.lower_bounds[next_known], '-infinity');
        lower_id := coalesce(due.lower_ids[next_known], '00000000-0000-0000-0000-000000000000');
        next_known := next_known + 1;
      else
        exit;
      end if;
      if exists (
        select from faultline.open_jobs j
        where j.queue = wanted
          and j.state = 'queued'
          and j.priority = level
          and (j.next_run_at, j.id) >= (lower_bound, lower_id)
          and j.next_run_at <= at
      ) then
        if not exists (select from faultline.queues q where q.name = wanted and q.paused_at is not null) then
          return next wanted;
        end if;
        exit;
      end if;
      previous := level;
    end loop;
    while due.bound_queues[next_known] = wanted loop
      next_known := next_known + 1;
    end loop;
  end loop;
end
$$;
