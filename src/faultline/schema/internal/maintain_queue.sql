-- Hear what happened to one queue with limits; once a minute, everything, whatever the numbers say: a net under every mistake.
-- Count its permits anew if `miscounted`. Forget groups that have nothing left, up to `most`. Returns how many.
create or replace function faultline.maintain_queue(
  queue text, number integer, most integer, miscounted boolean
) returns integer
language plpgsql volatile
-- Custom plans: a generic one, made here, would be the one that claims of this session have, too.
set plan_cache_mode = force_custom_plan
set jit = off
set max_parallel_workers_per_gather = 0
as $$
#variable_conflict use_column
declare
  due constant timestamptz := faultline.clock();
  was faultline.shards;
  shard faultline.shards;
  held integer := 0;
  apply_all boolean := false;
  forgotten integer := 0;
  found_count integer;
  each_group constant jsonb := faultline.group_limit(maintain_queue.queue, '*');
  have_own constant boolean := exists (
    select from faultline.limits l where l.queue = maintain_queue.queue and l.group_key not in ('', '*')
  );
  rested constant double precision := extract(epoch from due) - 10
    - coalesce((each_group ->> 'burst')::double precision / faultline.rate_of(each_group), 0);
begin
  for nth in 0..maintain_queue.number - 1 loop
    select s.* into was from faultline.shards s
    where s.queue = maintain_queue.queue and s.shard = nth order by s.changed_second desc limit 1 for update skip locked;
    continue when not found;
    -- Their number was changed since it was read: the next call knows it.
    if not exists (select from faultline.queues q where q.name = maintain_queue.queue and q.shards = maintain_queue.number) then
      return forgotten;
    end if;
    held := held + 1;
    shard := was;
    if shard.all_events_applied_at not between due - interval '1 minute' and due + interval '1 second' then
      apply_all := true;
      shard.all_events_applied_at := due;
      shard.seen_to := '0';
      shard.seen_open := '{}';
    end if;
    shard := (faultline.apply_group_events(shard, maintain_queue.number, due)).shard;
    -- Turns only grow, and the steps between groups are small: far from zero, they would be lost in a double.
    if shard.virtual_time > 1e6 then
      update faultline.groups g set virtual_time = g.virtual_time - shard.virtual_time where g.queue = maintain_queue.queue and g.shard = nth;
      shard.arrival_virtual_time := shard.arrival_virtual_time - shard.virtual_time;
      shard.virtual_time := 0;
    end if;
    perform faultline.save_shard(was, shard, due);
    if apply_all then
      -- A time that was set while the clock was ahead is no time.
      update faultline.groups g
      set ready = g.has_waiting, not_before = null
      where g.queue = maintain_queue.queue and g.shard = nth and g.not_before is not null
        and g.changed_second > extract(epoch from due) + 1;
      -- A group behind the virtual time of its shard: claims would not see it.
      update faultline.groups g
      set virtual_time = shard.arrival_virtual_time
      where g.queue = maintain_queue.queue and g.shard = nth and g.ready and g.holding_per_weight = 0 and g.virtual_time < shard.virtual_time;
    end if;
    delete from faultline.groups g
    where g.ctid = any (array(
      select i.ctid
      from faultline.groups i
      where i.queue = maintain_queue.queue and i.shard = nth and not i.has_waiting and i.holding = 0
        -- Forgotten too early, a group would have its tokens again. What holds for each is read once: many may rest.
        and i.changed_second < rested
        and (not have_own or i.changed_second < coalesce((
          select extract(epoch from due) - 10 - (o.fields ->> 'burst')::double precision / faultline.rate_of(o.fields)
          from (
            select each_group || l.effective as fields
            from faultline.limits l
            where l.queue = i.queue and l.group_key = i.group_key
          ) o
          where faultline.rate_of(o.fields) is not null
        ), rested))
      order by i.changed_second
      limit maintain_queue.most - forgotten
    ));
    get diagnostics found_count = row_count;
    forgotten := forgotten + found_count;
  end loop;
  if held = maintain_queue.number then
    -- Of transactions that did not know of a change yet.
    if apply_all or exists (
      select from faultline.group_events e where e.queue = maintain_queue.queue and e.shard >= maintain_queue.number
    ) then
      perform faultline.rewrite_events_of_old_shards(maintain_queue.queue, maintain_queue.number, maintain_queue.number);
    end if;
    if maintain_queue.miscounted then
      perform faultline.recount_queue(maintain_queue.queue);
    end if;
    perform faultline.rebalance_permits(maintain_queue.queue, maintain_queue.number);
  end if;
  return forgotten;
end
$$;
