-- Make a queue one with limits, and lock it for a change of them: its row, then its shards in their order. Claims that hold
-- one are waited for; what is granted after the commit is granted under what the caller writes.
create or replace function faultline.limit_queue(queue text, wanted_shards integer default null) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  number integer;
  was boolean;
  changed boolean := false;
begin
  perform faultline.check_name('the name of a queue', limit_queue.queue, 100);
  if limit_queue.wanted_shards not between 1 and 64 then
    raise exception 'queue % cannot have % shards; 1 to 64 are possible', limit_queue.queue, limit_queue.wanted_shards
      using errcode = 'FL005';
  end if;
  insert into faultline.queues (name) values (limit_queue.queue) on conflict do nothing;
  select q.limited, q.shards into was, number from faultline.queues q where q.name = limit_queue.queue for update;
  perform from faultline.shards s where s.queue = limit_queue.queue order by s.shard for update;
  if limit_queue.wanted_shards is not null and limit_queue.wanted_shards <> number then
    number := limit_queue.wanted_shards;
    changed := true;
  end if;
  update faultline.queues q set limited = true, shards = number
  where q.name = limit_queue.queue and (not q.limited or q.shards <> number);
  -- A bucket that was never used is full: one that comes later is empty.
  insert into faultline.shards (queue, shard, changed_second, tokens, refilled_at)
  select
    limit_queue.queue, n, extract(epoch from faultline.clock()), case when was then 0 end, case when was then faultline.clock() end
  from generate_series(0, number - 1) n
  where not exists (select from faultline.shards s where s.queue = limit_queue.queue and s.shard = n);
  if exists (select from faultline.shards s where s.queue = limit_queue.queue and s.shard >= number)
    or changed and was
  then
    perform faultline.reshard(limit_queue.queue, number);
  elsif not was then
    perform faultline.permit_running_jobs(limit_queue.queue);
    -- All at once: what is enqueued after this stands in its group, and must not overtake what was enqueued before.
    perform faultline.move_due_jobs_into_groups(limit_queue.queue, number, faultline.clock(), 2147483647);
  end if;
end
$$;
