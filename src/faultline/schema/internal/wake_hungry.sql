-- Wake a worker that sleeps, if somebody waits for a permit that is free now: of the queue, or of the group. Not if nobody
-- is to be notified: see `wake`, and `complete`.
create or replace function faultline.wake_hungry(queue text, at_shard integer, group_key text) returns void
language plpgsql volatile
set plan_cache_mode = force_generic_plan
set jit = off
set enable_seqscan = off
set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
  sleeper text;
begin
  if current_setting('faultline.notify', true) = 'off' then
    return;
  end if;
  if (
    select s.hungry from faultline.shards s
    where s.queue = wake_hungry.queue and s.shard = at_shard
    order by s.epoch desc
    limit 1
  ) or (
    select g.more from faultline.groups g
    where g.group_key = wake_hungry.group_key and g.queue = wake_hungry.queue
    order by g.epoch desc
    limit 1
  ) then
    select w.id into sleeper
    from faultline.workers w
    where wake_hungry.queue = any (w.sleeping)
      and w.beat_at > faultline.clock() - interval '3 seconds' and octet_length(to_json(w.id)::text) <= 100
    order by random()
    limit 1;
    if found then
      perform faultline.wake(wake_hungry.queue, -32768, transaction_timestamp(), array[sleeper]);
    end if;
  end if;
end
$$;
