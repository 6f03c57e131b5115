-- Hear what happened to one queue with limits; once a minute, everything, whatever the numbers say: a net under every mistake.
-- Count its permits anew if `miscounted`. Forget groups that have nothing left, up to `most`. Returns how many.
create or replace function faultline.fold_queue(
  queue text, number integer, most integer, miscounted boolean
) returns integer
language plpgsql volatile
-- Custom plans: a generic one, made here, would be the one that claims of this session have, too.
set plan_cache_mode = force_custom_plan
set jit = off
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
begin
  for nth in 0..fold_queue.number - 1 loop
    select s.* into was from faultline.shards s
    where s.queue = fold_queue.queue and s.shard = nth order by s.epoch desc limit 1 for update skip locked;
    continue when not found;
    held := held + 1;
    shard := was;
    if shard.heard_all_at not between due - interval '1 minute' and due + interval '1 second' then
      hear_all := true;
      shard.heard_all_at := due;
      shard.seen_to := '0';
      shard.seen_open := '{}';
    end if;
    shard := faultline.hear(shard, fold_queue.number, due);
    perform faultline.save_shard(was, shard, due);
    delete from faultline.groups g
    where g.ctid = any (array(
      select i.ctid
      from faultline.groups i
      where i.queue = fold_queue.queue and i.shard = nth and not i.more and i.holding = 0
        -- Forgotten too early, a group would have its tokens again.
        and i.epoch < extract(epoch from due) - 10 - coalesce((
          select (l.fields ->> 'burst')::double precision / faultline.rate_of(l.fields)
          from (select faultline.group_limit(i.queue, i.group_key) as fields) l
        ), 0)
      order by i.epoch
      limit fold_queue.most - forgotten
    ));
    get diagnostics found_count = row_count;
    forgotten := forgotten + found_count;
  end loop;
  if held = fold_queue.number then
    if hear_all then
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
