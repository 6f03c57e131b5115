-- Wake a worker that sleeps, if somebody waits for a permit that is free now: of the queue, or of one of the groups. Not if nobody
-- is to be notified: see `wake`, and `complete`.
create or replace function faultline.wake_hungry(queue text, at_shard integer, group_keys text[]) returns void
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
    select s.hungry from faultline.shards s
    where s.queue = wake_hungry.queue and s.shard = at_shard
    order by s.epoch desc
    limit 1
  ) or exists (
    select
    from unnest(wake_hungry.group_keys) as k (group_key)
    cross join lateral (
      select g.more from faultline.groups g
      where g.group_key = k.group_key and g.queue = wake_hungry.queue
      order by g.epoch desc
      limit 1
    ) g
    where g.more
  ) then
    perform faultline.wake_one(wake_hungry.queue);
  end if;
end
$$;
