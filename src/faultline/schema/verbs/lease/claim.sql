-- Claim up to `max_jobs` due jobs of one queue: lowest priority number first, then the longest due.
-- Before: queued. After: running, the owner and a lease of the job's own length set, and the token one higher than the
-- job's last one or the floor (`recover`, `prune`), whichever is greater.
-- Nothing is claimed from a paused queue.
--
-- `owner` must be new for every call (a worker's id and a counter), so that not even one process holds a token twice.
-- `priorities`, `lower_bounds` and `lower_ids` are hints: below its bound the caller has seen no live job at that priority.
-- They keep a claim from wading through rows that are dead but cannot be vacuumed while somebody holds an old snapshot. The ids
-- are for jobs that are due at the same moment: all that were enqueued together are.
--
-- The priorities are walked, one range scan each: a single scan behind `priority` would step over every delayed job.
-- The rows come back in physical order: sort them before running.
create or replace function faultline.claim(
  queue text,
  owner text,
  max_jobs integer,
  priorities integer[] default '{}',
  lower_bounds timestamptz[] default '{}',
  lower_ids uuid[] default '{}'
) returns table (
  job_id uuid,
  fencing_token faultline.token,
  task faultline.task_name,
  args json,
  attempt smallint,
  max_attempts faultline.max_attempts,
  mark_start boolean,
  reaps smallint,
  priority faultline.priority,
  next_run_at timestamptz,
  lease_seconds faultline.lease_seconds,
  idempotency_key text
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- A plan is made once in a session and kept: to make one takes as long as to claim thirty jobs. It must be right for a full
-- table, though it was made for an empty one. So the ways that are wrong are switched off, and there is one left.
set plan_cache_mode = force_generic_plan
-- Before PostgreSQL 18 a switched-off way that is taken all the same counts as very expensive, which would set off the
-- just-in-time compiler: 100 ms for nothing.
set jit = off
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  due timestamptz;
  remaining integer := least(coalesce(claim.max_jobs, 0), 10000);
  granted integer;
  next_known integer := 1;
  previous integer := -32768;
  level integer;
  lower_bound timestamptz;
  lower_id uuid;
begin
  if claim.owner is null or length(claim.owner) not between 1 and 200 then
    raise exception 'owner must have 1 to 200 characters' using errcode = 'FL005';
  end if;
  if exists (select from faultline.queues q where q.name = claim.queue and q.paused_at is not null) then
    return;
  end if;
  perform faultline.durable();
  if current_setting('transaction_isolation') <> 'read committed' then
    -- The snapshot may be older than the floor. A floor that was raised since ends this with 40001. The table's lock comes first,
    -- as in `recover`: the other way round they could deadlock.
    lock table faultline.open_jobs in row exclusive mode;
    perform from faultline.settings s for share;
  end if;
  -- Of two large claims at once, the later one comes upon rows that the earlier one has taken since it began. PostgreSQL locks
  -- the new version of such a row before it sees that it is running, and keeps the lock: for hundreds of jobs of which none is
  -- granted, and which their holder cannot complete meanwhile. So large claims go one after another. That is a courtesy and no
  -- guard: whoever has waited for a quarter of a second goes on, and does not wait again for a while.
  if remaining > 20 then
    perform faultline.take_turn(claim.queue);
  end if;
  -- After the wait for its turn. And not `now()`: in a loop of PL/pgSQL that stands still, so that jobs enqueued later would not be
  -- due, and leases would be born expired.
  due := faultline.clock();
  while remaining > 0 loop
    -- The next priority that has waiting jobs: one that the caller does not know of, below the next one it knows.
    select j.priority into level
    from faultline.open_jobs j
    where j.queue = claim.queue
      and j.state = 'queued'
      and j.priority > previous
      and j.priority < coalesce(claim.priorities[next_known], 32767)
    order by j.priority
    limit 1;
    if found then
      lower_bound := '-infinity';
    elsif next_known <= cardinality(claim.priorities) then
      level := claim.priorities[next_known];
      lower_bound := coalesce(claim.lower_bounds[next_known], '-infinity');
      lower_id := coalesce(claim.lower_ids[next_known], '00000000-0000-0000-0000-000000000000');
      next_known := next_known + 1;
    else
      exit;
    end if;
    -- `state` is not named in the outer where: the rows are locked already, and naming it lures the planner to an index.
    return query
      update faultline.open_jobs j
      set state = 'running',
          lease_owner = claim.owner,
          claimed_at = due,
          lease_expires_at = due + make_interval(secs => j.lease_seconds),
          -- The floor is read in this statement. Read before it, the floor could be raised while the statement waits for the
          -- table's lock, and the job of an id that was pruned since could be seen without the floor that its prune left.
          fencing_token = greatest(j.fencing_token, (select s.token_floor from faultline.settings s)) + 1,
          attempt = j.attempt + 1::smallint,
          started = false,
          renewals = 0
      where j.ctid = any (array(
        select r.ctid
        from faultline.open_jobs r
        where r.queue = claim.queue
          and r.state = 'queued'
          and r.priority = level
          and (r.next_run_at, r.id) >= (lower_bound, lower_id)
          and r.next_run_at <= due
        order by r.next_run_at, r.id
        limit remaining
        for update skip locked
      ))
      returning
        j.id, j.fencing_token, j.task, j.args, j.attempt, j.max_attempts,
        faultline.mark_start(j.attempt, j.max_attempts, j.reaps), j.reaps,
        j.priority, j.next_run_at, j.lease_seconds, j.idempotency_key;
    get diagnostics granted = row_count;
    remaining := remaining - granted;
    previous := level;
  end loop;
end
$$;
