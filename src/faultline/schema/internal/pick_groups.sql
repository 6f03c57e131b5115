-- Due jobs of groups, in the order of fair queueing: see share_room. Before: the caller holds the queue's lock. After: the groups
-- have their new virtual times, tokens and permits, for the jobs whose ctids are returned, locked.
-- Up to 1,000 groups are served in one round.
create or replace function faultline.pick_groups(
  inout limited_queue faultline.limited_queues, due timestamptz, most integer, out ctids tid[]
)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  remaining integer := pick_groups.most;
  groups faultline.ready_group[];
  served faultline.served_group[];
  picked tid[];
begin
  ctids := '{}';
  for round in 1..20 loop
    exit when remaining <= 0;
    groups := faultline.list_ready_groups(limited_queue, due, remaining);
    exit when cardinality(groups) = 0;
    served := faultline.pick_from_groups(limited_queue.queue, due, groups, faultline.share_room(groups, remaining));
    perform faultline.save_served_groups(served, due);
    picked := array(select unnest(s.ctids) from unnest(served) s);
    ctids := ctids || picked;
    remaining := remaining - cardinality(picked);
    limited_queue.virtual_time := greatest(
      limited_queue.virtual_time, (select min(s.virtual_time) from unnest(served) s where s.jobs > 0)
    );
    -- A group that comes in after this grant stands where one of weight 1 stands that was served now: behind those that wait, also
    -- those that were served just before.
    limited_queue.arrival_virtual_time :=
      greatest(limited_queue.arrival_virtual_time, limited_queue.virtual_time + 1) + cardinality(picked) * 1e-6;
    if picked = '{}' then
      perform faultline.clear_gone(limited_queue, due);
    end if;
    limited_queue.unfinished := limited_queue.unfinished or round = 20;
  end loop;
end
$$;
