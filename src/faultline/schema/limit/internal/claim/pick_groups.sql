-- Due jobs of groups, in the order of fair queueing: see share_room. Before: the caller holds the queue's lock. After: the groups
-- have their new virtual times, tokens and permits, for the jobs whose ctids are returned, locked.
-- Up to 1,000 groups are served in one round. Where a round finds no job, because they are locked, or were cancelled or expired
-- with many others, the next one looks at one job each of ten times as many groups, 500 at most: a claim of one job would look at
-- them one by one.
create or replace function faultline.pick_groups(
  inout limited_queue faultline.limited_queues, due timestamptz, most integer, out ctids tid[]
)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  remaining integer := pick_groups.most;
  looks integer := pick_groups.most;
  locked integer := 0;
  groups faultline.ready_group[];
  served faultline.served_group[];
  picked tid[];
begin
  ctids := '{}';
  for round in 1..20 loop
    exit when remaining <= 0;
    groups := faultline.list_ready_groups(limited_queue, due, looks);
    exit when cardinality(groups) = 0;
    if looks <= remaining then
      served := faultline.pick_from_groups(limited_queue.queue, due, groups, faultline.share_room(groups, remaining));
    else
      served := faultline.pick_from_groups(
        limited_queue.queue, due, groups, array(select least(g.room, 1) from unnest(groups) g)
      );
      -- The first that have one. The others stay as they are, though their jobs are locked until the commit.
      served := array(
        select f.served_group
        from (
          select s as served_group, sum(s.jobs) over (rows unbounded preceding) as claimed from unnest(served) s
        ) f
        where f.claimed <= remaining
      );
    end if;
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
    looks := case when picked = '{}' then greatest(remaining, least(10 * looks, 500)) else remaining end;
    -- To look past locked jobs takes longest, and other claims wait meanwhile: the next claim goes on.
    locked := locked + (select count(*) from unnest(served) s where not s.are_first);
    limited_queue.unfinished := limited_queue.unfinished or round = 20 or locked >= 500;
    exit when locked >= 500;
  end loop;
end
$$;
