-- Claim up to `max_jobs` due jobs of one queue: lowest priority number first, then the longest due.
-- Before: queued. After: running, with the owner, a lease of the job's own length, and a token one above the job's last
-- token or the floor (`recover`, `prune`), whichever is greater. From a paused queue nothing is claimed.
--
-- `owner` must be new for every call (a worker's id and a counter), so that two claims never have the same owner and token.
-- `priorities`, `lower_bounds` and `lower_ids` are hints: the caller has seen no queued job below this bound. They let a
-- claim skip dead rows that vacuum cannot remove while a session holds an old snapshot. The ids order jobs that are due
-- at the same time, as all jobs of one submission are.
-- A suspended job is claimed when its time is up: that is the timeout of its waits.
-- In READ COMMITTED transactions only.
-- `syncs`: the caller runs nothing before `sync_claim` has said that the claim is on the disk. So the claim of a queue with limits
-- does not wait for that itself, and neither do those that wait for its lock. Not in a transaction that has written before.
--
-- Each priority is a range scan of its own: one scan over all of them would read every delayed job.
-- Rows are returned in physical order: sort them before you run them.
create or replace function faultline.claim(
  queue text,
  owner text,
  max_jobs integer,
  priorities integer[] default '{}',
  lower_bounds timestamptz[] default '{}',
  lower_ids uuid[] default '{}',
  syncs boolean default false
) returns setof faultline.claimed
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- Planning takes as long as claiming thirty jobs, so a session plans once. That plan may be made while the table is
-- empty, and must suit a full one: everything but the right plan is switched off.
set plan_cache_mode = force_generic_plan
-- Before PostgreSQL 18, a plan with a node that is switched off costs so much that PostgreSQL compiles it: 100 ms.
set jit = off
-- To start parallel workers takes longer than a claim.
set max_parallel_workers_per_gather = 0
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
  claimed integer;
  next_known integer := 1;
  previous integer := -32768;
  level integer;
  lower_bound timestamptz;
  lower_id uuid;
  known_queue record;
begin
  if claim.owner is null or length(claim.owner) not between 1 and 200 then
    raise exception 'owner must have 1 to 200 characters' using errcode = 'FL005';
  end if;
  -- An older snapshot could show a queue that has no limits yet, or a token floor that has been raised since.
  -- Compared here, too: to call a function costs more than to compare.
  if current_setting('transaction_isolation') <> 'read committed' then
    perform faultline.read_committed('claim');
  end if;
  select q.paused_at, q.limited into known_queue from faultline.queues q where q.name = claim.queue;
  if known_queue.paused_at is not null then
    return;
  end if;
  perform faultline.require_synchronous_commit();
  if known_queue.limited then
    if claim.syncs then
      perform faultline.allow_asynchronous_commit();
    end if;
    return query select * from faultline.claim_limited(claim.queue, claim.owner, remaining);
    return;
  end if;
  -- Large claims take turns. If two run at once, the later one finds rows that the earlier one has claimed. PostgreSQL
  -- locks the new version of such a row before it sees that the job is running, and keeps the lock: the owner could not
  -- complete hundreds of jobs meanwhile. Correctness does not depend on turns, so a claim waits for 250 ms at most.
  if remaining > 20 then
    perform faultline.lock_large_claim(claim.queue);
  end if;
  -- Read after the wait. Not `now()`, which does not advance in a loop of PL/pgSQL: newer jobs would not be due, and
  -- new leases could already be expired.
  due := faultline.clock();
  while remaining > 0 loop
    -- The next priority with queued jobs: one that the caller gave no bound for, below the next one that it did.
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
    -- No `state` in the outer where: the rows are locked already, and with it the planner may choose another index.
    return query
      update faultline.open_jobs j
      set state = 'running',
          lease_owner = claim.owner,
          claimed_at = due,
          lease_expires_at = due + make_interval(secs => j.lease_seconds),
          -- Read the floor in this statement. Otherwise it could be raised while this statement waits for the table's
          -- lock, and a job whose id was pruned and enqueued again could be claimed with a token that was used before.
          fencing_token = greatest(j.fencing_token, (select s.token_floor from faultline.settings s)) + 1,
          attempt = j.attempt + 1::smallint,
          started = false,
          renewals = 0,
          suspended = null
      where j.ctid = any (array(
        select r.ctid
        from faultline.open_jobs r
        where r.queue = claim.queue
          and r.state = 'queued'
          and r.priority = level
          and (r.next_run_at, r.id) >= (lower_bound, lower_id)
          and r.next_run_at <= due
          -- Expired, and not cancelled yet: see expire. One that was claimed before no longer expires.
          and (r.expires_at is null or r.expires_at > due or r.fencing_token > 0)
        order by r.next_run_at, r.id
        limit remaining
        for update skip locked
      ))
      returning
        j.id, j.fencing_token, j.task, j.args, j.attempt, j.max_attempts,
        faultline.needs_start_record(j.attempt, j.max_attempts, j.reaps), j.reaps,
        j.priority, j.next_run_at, j.lease_seconds, j.idempotency_key, j.flow_id is not null, j.group_key;
    get diagnostics claimed = row_count;
    remaining := remaining - claimed;
    previous := level;
  end loop;
end
$$;
