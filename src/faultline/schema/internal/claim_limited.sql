-- A claim of a queue with limits: no more than they allow, and in fair order of its groups.
-- Claims of one shard come one after another, each until its commit: all counting is done by one session at a time, on rows
-- that nobody else writes. So limits are strict, and nobody but a claim ever waits for one. Who has waited for a quarter of a
-- second gets nothing, and comes again.
-- It is planned as `claim` is, whose settings it has, and so are the functions that it calls. Each of them has a statement of
-- many parts, which takes longer to set up than a look whether there is anything to do: so that is looked at first.
create or replace function faultline.claim_limited(
  queue text, owner text, max_jobs integer, shards integer
) returns setof faultline.claimed
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  -- Anywhere, so that no shard is always the last.
  first constant integer := floor(random() * shards);
  fields jsonb;
  due timestamptz;
  remaining integer := claim_limited.max_jobs;
  room integer;
  before faultline.shards;
  shard faultline.shards;
  held smallint[] := '{}';
  ctids tid[];
  part record;
  waits record;
  mixed boolean := false;
  -- What is left when everybody had a part goes to whoever waits.
  divided boolean;
begin
  perform faultline.read_committed('a claim of a queue with limits');
  -- Whoever claims in a transaction and leaves it open would stop the queue.
  if current_setting('idle_in_transaction_session_timeout')::interval not between '1 millisecond' and '5 seconds' then
    perform set_config('idle_in_transaction_session_timeout', '5s', true);
  end if;
  -- `recover` frees the permits of jobs that still run, and holds queues with limits meanwhile. It locks this table
  -- exclusively: what is read from here on is either from before it, permits included, or shows the hold.
  lock table faultline.open_jobs in row exclusive mode;
  while remaining > 0 loop
    shard := faultline.lock_shard(claim_limited.queue, claim_limited.shards, held, first);
    exit when shard.queue is null;
    before := shard;
    -- Read after the wait, as all that a change of limits writes. Where the number of shards was changed meanwhile, this row
    -- may count what it did not count before: whoever claims comes again, and is told the new number. So it is where the queue
    -- was paused. Nothing is granted while `recover` holds the queues with limits.
    select l.effective into fields
    from faultline.queues q
    left join faultline.limits l on l.queue = q.name and l.group_key = ''
    where q.name = claim_limited.queue and q.shards = claim_limited.shards and q.paused_at is null
      and not exists (select from faultline.settings s where s.limits_held_until > faultline.clock());
    exit when not found;
    -- Read after the wait.
    due := faultline.clock();
    if held = '{}' and exists (
      select from faultline.open_jobs r
      where r.queue = claim_limited.queue and r.state = 'queued' and r.group_key is not null and r.in_group is null
        and r.counted is null and r.next_run_at <= due
    ) then
      perform faultline.move_due_jobs_into_groups(claim_limited.queue, claim_limited.shards, due);
    end if;
    held := held || shard.shard;
    -- Until there is something to grant, or nothing may be granted, or all was heard.
    for nth in 1..20 loop
      -- Each job comes in and ends: of less than twice as many groups as it grants, claims would fall behind.
      part := faultline.apply_group_events(shard, claim_limited.shards, due, greatest(500, 2 * claim_limited.max_jobs));
      shard := part.shard;
      -- Again: whoever's permit is granted now ended before, by the clock, too.
      due := faultline.clock();
      select
        exists (
          select from faultline.groups g where g.queue = shard.queue and g.shard = shard.shard and g.not_before <= due
        ) as later,
        -- From the shard's virtual time on, as in pick_groups. In order, so that no other index fits.
        coalesce(
          (
            select true from faultline.groups g
            where g.queue = shard.queue and g.shard = shard.shard and g.ready and g.holding_per_weight = 0 and g.virtual_time >= shard.virtual_time
            order by g.virtual_time, g.group_key
            limit 1
          ),
          (
            select true from faultline.groups g
            where g.queue = shard.queue and g.shard = shard.shard and g.ready and g.holding_per_weight > 0
            order by g.holding_per_weight, g.virtual_time, g.group_key
            limit 1
          ),
          false
        ) as ready,
        exists (
          select from faultline.open_jobs r
          where r.queue = shard.queue and r.state = 'queued' and r.group_key is not null and r.in_group is null
            and r.counted = 2 | (shard.shard << 2) and r.next_run_at <= due
        ) as kept
      into waits;
      shard.unfinished := part.more;
      part := faultline.shard_room(shard, claim_limited.shards, coalesce(fields, '{}'), due);
      shard := part.shard;
      room := least(part.room, remaining);
      exit when not shard.unfinished or room <= 0 or waits.later or waits.ready or waits.kept;
    end loop;
    if waits.later then
      perform faultline.mark_groups_ready(shard, due);
      waits.ready := true;
    end if;
    for pass in 1..2 loop
      exit when room <= 0;
      -- Jobs of no group get half of the room where groups wait too.
      mixed := pass = 1 and (waits.ready or waits.kept) and faultline.has_due_ungrouped(claim_limited.queue, due);
      divided := mixed or pass = 1 and waits.ready and waits.kept;
      ctids := '{}';
      if waits.kept then
        -- Heads of groups that keep their order get half of it where others wait: they may come again and again.
        ctids := faultline.pick_permit_holders(
          shard, due, case when divided then (room + (random() < 0.5)::integer) / 2 else room end
        );
      end if;
      if waits.ready then
        part := faultline.pick_groups(
          shard, due,
          case when mixed then (room - cardinality(ctids) + (random() < 0.5)::integer) / 2 else room - cardinality(ctids) end
        );
        shard := part.shard;
        ctids := ctids || part.ctids;
      end if;
      if mixed or not (waits.ready or waits.kept) then
        ctids := ctids || faultline.pick_ungrouped(claim_limited.queue, due, room - cardinality(ctids));
      end if;
      exit when ctids = '{}' and not divided;
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
            counted = case when j.group_key is null then 1 else 3 end | (shard.shard << 2),
            next_run_at = coalesce(j.group_at, j.next_run_at),
            in_group = null,
            group_at = null
        where j.ctid = any (ctids)
        returning
          j.id, j.fencing_token, j.task, j.args, j.attempt, j.max_attempts,
          faultline.needs_start_record(j.attempt, j.max_attempts, j.reaps), j.reaps,
          j.priority, j.next_run_at, j.lease_seconds, j.idempotency_key, j.flow_id is not null, j.group_key;
      shard.holding := shard.holding + cardinality(ctids);
      shard.tokens := shard.tokens - cardinality(ctids);
      remaining := remaining - cardinality(ctids);
      room := room - cardinality(ctids);
      exit when not divided;
    end loop;
    shard.has_unmet_demand := room <= 0;
    shard.unfinished := shard.unfinished and room > 0;
    perform faultline.save_shard(before, shard, due);
  end loop;
end
$$;
