-- Hear what happened to one queue with limits; once a minute, everything, whatever the numbers say: a net under every mistake.
-- Count its permits anew if `miscounted`. Forget groups that have nothing left, up to `most`. Returns how many.
create or replace function faultline.fold_queue(
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
  hear_all boolean := false;
  forgotten integer := 0;
  found_count integer;
  each_group constant jsonb := faultline.group_limit(fold_queue.queue, '*');
  have_own constant boolean := exists (
    select from faultline.limits l where l.queue = fold_queue.queue and l.group_key not in ('', '*')
  );
  rested constant double precision := extract(epoch from due) - 10
    - coalesce((each_group ->> 'burst')::double precision / faultline.rate_of(each_group), 0);
begin
  for nth in 0..fold_queue.number - 1 loop
    select s.* into was from faultline.shards s
    where s.queue = fold_queue.queue and s.shard = nth order by s.epoch desc limit 1 for update skip locked;
    continue when not found;
    -- Their number was changed since it was read: the next fold knows it.
    if not exists (select from faultline.queues q where q.name = fold_queue.queue and q.shards = fold_queue.number) then
      return forgotten;
    end if;
    held := held + 1;
    shard := was;
    if shard.heard_all_at not between due - interval '1 minute' and due + interval '1 second' then
      hear_all := true;
      shard.heard_all_at := due;
      shard.seen_to := '0';
      shard.seen_open := '{}';
    end if;
    shard := (faultline.hear(shard, fold_queue.number, due)).shard;
    perform faultline.save_shard(was, shard, due);
    if hear_all then
      -- A time that was set while the clock was ahead is no time.
      update faultline.groups g
      set ready = g.more, not_before = null
      where g.queue = fold_queue.queue and g.shard = nth and g.not_before is not null
        and g.epoch > extract(epoch from due) + 1;
      -- A group that stands before the turn of its shard: claims would not see it.
      update faultline.groups g
      set turn = shard.entry
      where g.queue = fold_queue.queue and g.shard = nth and g.ready and g.load = 0 and g.turn < shard.turn;
    end if;
    delete from faultline.groups g
    where g.ctid = any (array(
      select i.ctid
      from faultline.groups i
      where i.queue = fold_queue.queue and i.shard = nth and not i.more and i.holding = 0
        -- Forgotten too early, a group would have its tokens again. What holds for each is read once: many may rest.
        and i.epoch < rested
        and (not have_own or i.epoch < coalesce((
          select extract(epoch from due) - 10 - (o.fields ->> 'burst')::double precision / faultline.rate_of(o.fields)
          from (
            select each_group || l.effective as fields
            from faultline.limits l
            where l.queue = i.queue and l.group_key = i.group_key
          ) o
          where faultline.rate_of(o.fields) is not null
        ), rested))
      order by i.epoch
      limit fold_queue.most - forgotten
    ));
    get diagnostics found_count = row_count;
    forgotten := forgotten + found_count;
  end loop;
  if held = fold_queue.number then
    -- Of transactions that did not know of a change yet.
    if hear_all or exists (
      select from faultline.group_events e where e.queue = fold_queue.queue and e.shard >= fold_queue.number
    ) then
      perform faultline.move_strays(fold_queue.queue, fold_queue.number, fold_queue.number);
    end if;
    if fold_queue.miscounted then
      perform faultline.recount_queue(fold_queue.queue);
    end if;
    perform faultline.lend(fold_queue.queue, fold_queue.number);
  end if;
  return forgotten;
end
$$;
