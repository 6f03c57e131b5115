-- Keep the accounts of limits small and right, in the background: hear what happened to queues that nobody claims from, and
-- once a minute everything; count jobs that run without a permit; lend permits between shards; forget up to `max_groups`
-- groups that have nothing left. Never waits: a shard that somebody holds is left for the next time. Returns how many groups
-- were forgotten.
create or replace function faultline.fold(max_groups integer default 500) returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  one record;
  forgotten integer := 0;
begin
  perform faultline.read_committed('fold');
  perform faultline.durable();
  for one in select q.name, q.shards from faultline.queues q where q.limited order by q.name loop
    forgotten := forgotten + faultline.fold_queue(one.name, one.shards, greatest(0, fold.max_groups - forgotten));
  end loop;
  return forgotten;
end
$$;
