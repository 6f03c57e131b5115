-- Move the groups, events and permits of a queue to its shards, after their number was changed.
-- Before: the caller holds all its shards, and has written the new number.
create or replace function faultline.reshard(queue text, number integer) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  -- From now on, all shards and groups are as far as the first of them: no group is behind the virtual time of its new
  -- shard.
  furthest constant double precision := coalesce(
    (select max(greatest(s.virtual_time, s.arrival_virtual_time)) from faultline.shards s where s.queue = reshard.queue), 0
  );
begin
  update faultline.groups g
  set shard = faultline.shard_of(g.group_key, reshard.number), virtual_time = greatest(g.virtual_time, furthest)
  where g.queue = reshard.queue;
  perform faultline.rewrite_events_of_old_shards(reshard.queue, reshard.number, 0);
  delete from faultline.shards s where s.queue = reshard.queue and s.shard >= reshard.number;
  update faultline.shards s set lent = 0, tokens = least(s.tokens, 1), virtual_time = furthest, arrival_virtual_time = furthest
  where s.queue = reshard.queue;
  -- What the shards hold is divided anew, and nothing was wrong with it.
  perform faultline.recount_queue(reshard.queue, divided => true);
end
$$;
