-- Divide the permits of a queue between its shards by the limit that has just been written. Otherwise one of them could go on
-- with what it was lent under the limit before. Before: the caller holds all its shards.
create or replace function faultline.divide(queue text) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  number constant integer := (select q.shards from faultline.queues q where q.name = divide.queue);
  due constant timestamptz := faultline.clock();
  was faultline.shards;
begin
  if number = 1 then
    return;
  end if;
  for was in select s.* from faultline.shards s where s.queue = divide.queue order by s.shard loop
    perform faultline.save_shard(was, (faultline.hear(was, number, due, 1000000)).shard, due);
  end loop;
  perform faultline.lend(divide.queue, number);
end
$$;
