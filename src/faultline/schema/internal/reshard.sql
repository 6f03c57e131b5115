-- Move the groups, events and permits of a queue to its shards, after their number was changed.
-- Before: the caller holds all its shards, and has written the new number.
create or replace function faultline.reshard(queue text, number integer) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  -- From now on, all shards and groups are as far as the first of them: no group stands before the turn of its new shard.
  furthest constant double precision := coalesce(
    (select max(greatest(s.turn, s.entry)) from faultline.shards s where s.queue = reshard.queue), 0
  );
begin
  update faultline.groups g
  set shard = faultline.shard_of(g.group_key, reshard.number), turn = greatest(g.turn, furthest)
  where g.queue = reshard.queue;
  perform faultline.move_strays(reshard.queue, reshard.number, 0);
  delete from faultline.shards s where s.queue = reshard.queue and s.shard >= reshard.number;
  update faultline.shards s set lent = 0, tokens = least(s.tokens, 1), turn = furthest, entry = furthest
  where s.queue = reshard.queue;
  perform faultline.recount_queue(reshard.queue);
end
$$;
