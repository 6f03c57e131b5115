-- Divide the permits of a queue between its shards by the limit that has just been written. Otherwise one of them could go on
-- with what it was lent under the limit before. Before: the caller holds all its shards.
create or replace function faultline.rebalance_permits_now(queue text) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  number constant integer := (select q.shards from faultline.queues q where q.name = rebalance_permits_now.queue);
  due constant timestamptz := faultline.clock();
  was faultline.shards;
begin
  if number = 1 then
    return;
  end if;
  for was in select s.* from faultline.shards s where s.queue = rebalance_permits_now.queue order by s.shard loop
    perform faultline.save_shard(was, (faultline.apply_group_events(was, number, due, 1000000)).shard, due);
  end loop;
  perform faultline.rebalance_permits(rebalance_permits_now.queue, number);
end
$$;
