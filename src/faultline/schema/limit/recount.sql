-- Count the permits of a queue with limits, or of all, from the jobs that hold them. Returns how many counts were wrong; the
-- journal says which. Needed after a restore of single tables, or after SQL that wrote to them. Claims of the queue wait meanwhile.
create or replace function faultline.recount(queue text default null) returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  one text;
  wrong integer := 0;
begin
  perform faultline.read_committed('recount');
  perform faultline.require_synchronous_commit();
  for one in
    select q.name from faultline.queues q where q.limited and (recount.queue is null or q.name = recount.queue) order by q.name
  loop
    perform faultline.limit_queue(one);
    wrong := wrong + faultline.recount_queue(one);
  end loop;
  return wrong;
end
$$;
