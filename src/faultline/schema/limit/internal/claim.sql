-- A claim of a queue with limits, and its steps: lock, apply events, room, pick, grant.

-- A claim of a queue with limits: no more than they allow, and in fair order of its groups.
-- Its claims come one after another, each until its commit: all counting is done by one session at a time, on rows that nobody
-- else writes. So limits are strict, and only claims wait for them. A claim that has waited for a quarter of a second gets
-- nothing, and its worker claims again.
-- It is planned as `claim` is, whose settings it has, and so are the functions that it calls. Each of them has a statement of
-- many parts, which takes longer to set up than a look whether there is anything to do: so that is looked at first.
create or replace function faultline.claim_limited(
  queue text, owner text, max_jobs integer
) returns setof faultline.claimed
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  fields jsonb;
  due timestamptz;
  before faultline.limited_queues;
  limited_queue faultline.limited_queues;
  applied record;
  picked record;
  room integer;
begin
  -- Whoever claims in a transaction and leaves it open would stop the queue.
  if current_setting('idle_in_transaction_session_timeout')::interval not between '1 millisecond' and '5 seconds' then
    perform set_config('idle_in_transaction_session_timeout', '5s', true);
  end if;
  -- `recover` frees the permits of jobs that still run, and holds queues with limits meanwhile. It locks this table
  -- exclusively: what is read from here on is either from before it, permits included, or shows the hold.
  lock table faultline.open_jobs in row exclusive mode;
  -- Step 1: lock the queue.
  before := faultline.lock_limited_queue(claim_limited.queue);
  -- Read after the wait, as all that a change of limits writes, and the time. Nothing is granted while the queue is paused, or
  -- while `recover` holds the queues with limits.
  select coalesce(l.effective, '{}') into fields
  from faultline.queues q
  left join faultline.limits l on l.queue = q.name and l.group_key = ''
  where q.name = before.queue and q.paused_at is null
    and not exists (select from faultline.settings s where s.limits_held_until > faultline.clock());
  if not found or claim_limited.max_jobs <= 0 then
    return;
  end if;
  due := faultline.clock();
  if exists (
    select from faultline.open_jobs r
    where r.queue = claim_limited.queue and r.state = 'queued' and r.group_key is not null and r.in_group is null
      and r.has_permit is null and r.next_run_at <= due
  ) then
    perform faultline.move_due_jobs_into_groups(claim_limited.queue, due);
  end if;
  -- Steps 2 and 3: apply events, work out the room.
  applied := faultline.apply_until_room(before, fields, claim_limited.max_jobs);
  limited_queue := applied.limited_queue;
  due := applied.due;
  room := applied.room;
  for pass in 1..2 loop
    exit when room <= 0;
    -- Step 4: pick jobs.
    picked := faultline.pick_jobs(limited_queue, due, room, applied.ready, applied.kept, divides => pass = 1);
    limited_queue := picked.limited_queue;
    exit when picked.ctids = '{}' and not picked.divided;
    -- Step 5: grant them.
    return query
      update faultline.open_jobs j
      set state = 'running',
          lease_owner = claim_limited.owner,
          claimed_at = due,
          lease_expires_at = due + make_interval(secs => j.lease_seconds),
          -- Read in this statement, as in `claim`.
          fencing_token = greatest(j.fencing_token, (select s.token_floor from faultline.settings s)) + 1,
          attempt = j.attempt + 1::smallint,
          started = false,
          renewals = 0,
          suspended = null,
          has_permit = true,
          next_run_at = coalesce(j.group_at, j.next_run_at),
          in_group = null,
          group_at = null
      where j.ctid = any (picked.ctids)
      returning
        j.id, j.fencing_token, j.task, j.args, j.attempt, j.max_attempts,
        faultline.needs_start_record(j.attempt, j.max_attempts, j.reaps), j.reaps,
        j.priority, j.next_run_at, j.lease_seconds, j.idempotency_key, j.flow_id is not null, j.group_key;
    limited_queue.holding := limited_queue.holding + cardinality(picked.ctids);
    limited_queue.tokens := limited_queue.tokens - cardinality(picked.ctids);
    room := room - cardinality(picked.ctids);
    -- What is left when everybody had a part goes to those who wait.
    exit when not picked.divided;
  end loop;
  limited_queue.has_unmet_demand := room <= 0;
  perform faultline.save_limited_queue(before, limited_queue, due);
end
$$;

-- Lock a queue with limits for a claim, until the commit: its row, or null where another session holds it for a quarter of a
-- second.
create or replace function faultline.lock_limited_queue(queue text) returns faultline.limited_queues
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  patience constant text := current_setting('lock_timeout');
  found_row faultline.limited_queues;
begin
  select l.* into found_row
  from faultline.limited_queues l
  where l.queue = lock_limited_queue.queue
  order by l.changed_second desc
  limit 1
  for update skip locked;
  if found then
    return found_row;
  end if;
  perform set_config('lock_timeout', '250ms', true);
  select l.* into found_row
  from faultline.limited_queues l
  where l.queue = lock_limited_queue.queue
  order by l.changed_second desc
  limit 1
  for update;
  perform set_config('lock_timeout', patience, true);
  return found_row;
exception when lock_not_available or deadlock_detected then
  return null;
end
$$;

-- Apply what happened to the groups of a queue until there is something to grant, or nothing may be granted, or all was applied.
-- Before: the caller holds the queue's lock. After: `due` is a moment by which every job has ended whose permit may be granted now.
-- `ready`: a group has a job that may be granted. `kept`: a job that kept its group's permit is due.
create or replace function faultline.apply_until_room(
  inout limited_queue faultline.limited_queues, fields jsonb, max_jobs integer,
  out due timestamptz, out room integer, out ready boolean, out kept boolean
)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  part record;
  later boolean;
begin
  due := faultline.clock();
  for nth in 1..20 loop
    -- Each job comes in and ends: of less than twice as many groups as it grants, claims would fall behind.
    part := faultline.apply_group_events(limited_queue, due, greatest(500, 2 * max_jobs));
    limited_queue := part.limited_queue;
    limited_queue.unfinished := part.more;
    due := faultline.clock();
    later := exists (select from faultline.groups g where g.queue = limited_queue.queue and g.not_before <= due);
    ready := later or faultline.has_ready_group(limited_queue);
    kept := exists (
      select from faultline.open_jobs r
      where r.queue = limited_queue.queue and r.state = 'queued' and r.group_key is not null and r.in_group is null
        and r.has_permit and r.next_run_at <= due
    );
    part := faultline.queue_room(limited_queue, fields, due);
    limited_queue := part.limited_queue;
    room := least(part.room, max_jobs);
    exit when not limited_queue.unfinished or room <= 0 or ready or kept;
  end loop;
  if later then
    limited_queue := faultline.mark_groups_ready(limited_queue, due);
  end if;
end
$$;

-- How many jobs a queue may grant, by the number that run and by its tokens. Its tokens are brought up to date. Without limits of
-- the queue: any number.
create or replace function faultline.queue_room(
  inout limited_queue faultline.limited_queues, fields jsonb, due timestamptz, out room integer
)
language plpgsql stable
as $$
declare
  cap constant integer := faultline.cap_of(fields);
  rate constant double precision := faultline.rate_of(fields);
begin
  room := 2147483647;
  if cap is not null then
    room := greatest(0, cap - limited_queue.holding);
  end if;
  if rate is not null then
    limited_queue.tokens := faultline.refilled(
      limited_queue.tokens, limited_queue.refilled_at, rate, (fields ->> 'burst')::double precision, due
    );
    limited_queue.refilled_at := faultline.refill_moment(limited_queue.refilled_at, due);
    room := least(room, floor(limited_queue.tokens)::integer);
  else
    limited_queue.tokens := null;
    limited_queue.refilled_at := null;
  end if;
end
$$;

-- Write what the holder of a queue's lock has counted, if anything changed.
create or replace function faultline.save_limited_queue(
  was faultline.limited_queues, is_now faultline.limited_queues, due timestamptz
) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  if was is not distinct from is_now then
    return;
  end if;
  update faultline.limited_queues l
  set changed_second = greatest(l.changed_second, extract(epoch from due)::bigint),
      holding = is_now.holding,
      tokens = is_now.tokens,
      refilled_at = is_now.refilled_at,
      has_unmet_demand = is_now.has_unmet_demand,
      unfinished = is_now.unfinished,
      seen_to = is_now.seen_to,
      seen_open = is_now.seen_open,
      all_events_applied_at = is_now.all_events_applied_at,
      cluster = is_now.cluster,
      virtual_time = is_now.virtual_time,
      arrival_virtual_time = is_now.arrival_virtual_time
  where l.queue = was.queue and l.changed_second = was.changed_second;
end
$$;

-- Let the commit of this transaction not wait for the disk: it holds a lock that others wait for. Not if something was written
-- in it before: that was promised to be on the disk.
create or replace function faultline.allow_asynchronous_commit() returns void
language plpgsql volatile
as $$
begin
  if pg_current_xact_id_if_assigned() is null then
    perform set_config('synchronous_commit', 'off', true);
  end if;
end
$$;

-- Whether a group of a queue has a job that may be granted. Of those that hold nothing, from the queue's virtual time on, as in
-- pick_groups. In order, so that no other index fits.
create or replace function faultline.has_ready_group(limited_queue faultline.limited_queues) returns boolean
language plpgsql stable
as $$
#variable_conflict use_column
begin
  return coalesce(
    (
      select true from faultline.groups g
      where g.queue = limited_queue.queue and g.ready and g.holding_per_weight = 0
        and g.virtual_time >= limited_queue.virtual_time
      order by g.virtual_time, g.group_key
      limit 1
    ),
    (
      select true from faultline.groups g
      where g.queue = limited_queue.queue and g.ready and g.holding_per_weight > 0
      order by g.holding_per_weight, g.virtual_time, g.group_key
      limit 1
    ),
    false
  );
end
$$;

-- Whether a job of no group is due in a queue with limits, among the first 1,000 due jobs of its priority. Retried and delayed
-- jobs of groups that are due stand there, too, until claims have moved them into their groups: each claim would walk all of them.
create or replace function faultline.has_due_ungrouped(queue text, due timestamptz) returns boolean
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  level integer := -32769;
  found_level integer;
begin
  loop
    select j.priority into found_level
    from faultline.open_jobs j
    where j.queue = has_due_ungrouped.queue and j.state = 'queued'
      and j.priority > level and j.priority < case when level < 0 then 0 else 32768 end
    order by j.priority
    limit 1;
    -- Priority 0 is not searched for: most jobs have it, and while a session holds an old snapshot, all that had it would be walked.
    if found then
      level := found_level;
    elsif level < 0 then
      level := 0;
    else
      return false;
    end if;
    if exists (
      select
      from (
        select r.group_key, r.expires_at, r.fencing_token
        from faultline.open_jobs r
        where r.queue = has_due_ungrouped.queue and r.state = 'queued' and r.priority = level
          and r.next_run_at <= has_due_ungrouped.due
        order by r.next_run_at, r.id
        limit 1000
      ) r
      where r.group_key is null
        and (r.expires_at is null or r.expires_at > has_due_ungrouped.due or r.fencing_token > 0)
    ) then
      return true;
    end if;
  end loop;
end
$$;

-- Wake a worker that sleeps, if a job waits for a permit that is free now: of the queue, or of one of the groups. Not where
-- notifications are off: see `wake`, and `complete`.
create or replace function faultline.wake_for_free_permit(queue text, group_keys text[]) returns void
language plpgsql volatile
set plan_cache_mode = force_generic_plan
set jit = off
set enable_seqscan = off
set enable_bitmapscan = off
as $$
#variable_conflict use_column
begin
  if current_setting('faultline.notify', true) = 'off' then
    return;
  end if;
  if (
    select l.has_unmet_demand from faultline.limited_queues l
    where l.queue = wake_for_free_permit.queue
    order by l.changed_second desc
    limit 1
  ) or exists (
    select
    from unnest(wake_for_free_permit.group_keys) as k (group_key)
    cross join lateral (
      select g.has_waiting from faultline.groups g
      where g.group_key = k.group_key and g.queue = wake_for_free_permit.queue
      order by g.changed_second desc
      limit 1
    ) g
    where g.has_waiting
  ) then
    perform faultline.wake_one(wake_for_free_permit.queue);
  end if;
end
$$;

-- Let due jobs of groups go to their groups: they were delayed, retried or given back. At most 1,000 at a time in a claim, so
-- that a storm of them delays a claim by milliseconds; the next claim goes on. Before events are applied: it makes some.
create or replace function faultline.move_due_jobs_into_groups(
  queue text, due timestamptz, most integer default 1000
) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  arrived record;
begin
  with due_now as materialized (
    select r.ctid
    from faultline.open_jobs r
    where r.queue = move_due_jobs_into_groups.queue
      and r.state = 'queued' and r.group_key is not null and r.in_group is null
      and r.has_permit is null
      and r.next_run_at <= move_due_jobs_into_groups.due
    -- By `has_permit` too, which is null: without it, the planner does not see that the index is in this order.
    order by r.has_permit, r.next_run_at, r.id
    limit move_due_jobs_into_groups.most
    for update skip locked
  ),
  moved as (
    update faultline.open_jobs j
    -- Its time is up, if it was suspended: it needs no other wake-up.
    set in_group = true, group_at = j.next_run_at, next_run_at = '9999-01-01Z', suspended = null
    where j.ctid = any (array(select d.ctid from due_now d))
    returning j.group_key, j.priority, j.group_at
  )
  select array_agg(g.group_key) as group_keys, array_agg(g.priority) as priorities, array_agg(g.run_at) as run_ats
  into arrived
  from (
    select m.group_key, min(m.priority) as priority, min(m.group_at) as run_at from moved m group by m.group_key
  ) g;
  perform faultline.insert_group_events(
    move_due_jobs_into_groups.queue, arrived.group_keys, null, arrived.priorities, arrived.run_ats
  );
end
$$;
