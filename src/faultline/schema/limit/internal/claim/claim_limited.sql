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
