-- When to claim from a queue with limits again, if nothing happens before: the earliest moment at which something may be
-- granted that nobody is notified of. Now, if there is something already. Null: whoever makes it possible notifies.
-- `-infinity`: the last claim had not done looking, and the next one goes on: come at once.
create or replace function faultline.next_claim_at(queue text) returns timestamptz
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
  at constant timestamptz := faultline.clock();
  fields jsonb;
  known_queue record;
  shard faultline.shards;
  part record;
  claim_at timestamptz;
  soonest timestamptz;
  happened boolean;
begin
  if exists (select from faultline.settings s where s.limits_held_until > at) then
    -- `recover` holds all queues with limits until then.
    return (select s.limits_held_until from faultline.settings s);
  end if;
  select q.limited, q.shards, q.paused_at into known_queue from faultline.queues q where q.name = next_claim_at.queue;
  if known_queue.limited is not true or known_queue.paused_at is not null then
    return null;
  end if;
  fields := coalesce((select l.effective from faultline.limits l where l.queue = next_claim_at.queue and l.group_key = ''), '{}');
  soonest := (
    select r.next_run_at from faultline.open_jobs r
    where r.queue = next_claim_at.queue and r.state = 'queued' and r.group_key is not null and r.in_group is null
      and r.counted is null
    order by r.counted, r.next_run_at
    limit 1
  );
  for number in 0..known_queue.shards - 1 loop
    select s.* into shard from faultline.shards s
    where s.queue = next_claim_at.queue and s.shard = number order by s.changed_second desc limit 1;
    continue when not found;
    happened := faultline.has_unapplied_events(shard);
    -- Waits for a token of the queue, if it waits for that alone.
    part := faultline.shard_room(shard, known_queue.shards, fields - array['rate', 'per', 'burst'], at);
    -- Events that are not applied yet may have freed a permit.
    continue when part.room <= 0 and not happened;
    claim_at := least(
      (
        select g.not_before from faultline.groups g
        where g.queue = next_claim_at.queue and g.shard = number and g.not_before is not null order by g.not_before limit 1
      ),
      (
        select r.next_run_at from faultline.open_jobs r
        where r.queue = next_claim_at.queue and r.state = 'queued' and r.group_key is not null and r.in_group is null
          and r.counted = 2 | (number << 2)
        order by r.next_run_at
        limit 1
      ),
      case when happened
        or (
          select true from faultline.groups g
          where g.queue = next_claim_at.queue and g.shard = number and g.ready and g.holding_per_weight = 0 and g.virtual_time >= shard.virtual_time
          order by g.virtual_time, g.group_key
          limit 1
        )
        or (
          select true from faultline.groups g
          where g.queue = next_claim_at.queue and g.shard = number and g.ready and g.holding_per_weight > 0
          order by g.holding_per_weight, g.virtual_time, g.group_key
          limit 1
        )
        or faultline.has_due_ungrouped(next_claim_at.queue, at) then at end,
      case when shard.unfinished and part.room > 0 then '-infinity'::timestamptz end
    );
    soonest := least(soonest, greatest(claim_at, faultline.next_token(next_claim_at.queue, number, known_queue.shards, fields, at)));
  end loop;
  return soonest;
end
$$;
