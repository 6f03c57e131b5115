-- Give back the permits of a job that no longer runs, however it ended: a trigger, so that no verb can forget it. Only
-- `complete` does it for all its jobs at once: see free_ended.
-- In a group that keeps its order, a job that goes back to the queue keeps its group's permit until it has ended for good.
-- Not if it waits for another job of the group, as one may that called it before the group kept its order: both would wait.
create or replace function faultline.free_permits() returns trigger
language plpgsql
as $$
declare
  kept integer := 0;
  freed integer;
  freed_group integer;
  shards integer;
  -- The shards that counted them: the queue's stands in the mark, the group's is that of the group.
  at_shard integer;
  at_home integer;
begin
  shards := coalesce((select q.shards from faultline.queues q where q.name = old.queue), 1);
  if tg_op = 'UPDATE' then
    if new.state = 'queued' and old.counted & 2 > 0 and new.group_key = old.group_key
      and (faultline.group_limit(old.queue, old.group_key) ->> 'ordered')::boolean
      and not (new.suspended is true and faultline.waits_for_group(old.id, old.queue, old.group_key))
    then
      kept := 2;
    end if;
    -- Claims look for it at the shard of its group, which may be another than when it was claimed.
    new.counted := nullif(kept, 0) | (faultline.shard_of(old.group_key, shards) << 2);
  end if;
  freed := old.counted & 1;
  freed_group := (old.counted & 2 & ~kept) >> 1;
  if freed + freed_group > 0 then
    at_shard := (old.counted >> 2) % shards;
    at_home := case when freed_group > 0 then faultline.shard_of(old.group_key, shards) else at_shard end;
    insert into faultline.group_events (queue, shard, freed, group_count, group_keys, freed_groups)
    select
      old.queue, at_home, case when at_home = at_shard then freed else 0 end, freed_group,
      case when freed_group > 0 then array[old.group_key] end, case when freed_group > 0 then array[freed_group] end
    union all
    select old.queue, at_shard, freed, 0, null, null where at_home <> at_shard and freed > 0;
    perform faultline.wake_for_free_permit(old.queue, at_shard, case when freed_group > 0 then array[old.group_key] end);
  end if;
  return new;
end
$$;
