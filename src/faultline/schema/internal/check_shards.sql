-- Refuse (FL005) a rate of a queue that its shards could not keep: each has its part of the burst, and one with less than a
-- whole token would never grant anything. Before: the caller has written the limits and the number of shards.
create or replace function faultline.check_shards(queue text) returns void
language plpgsql stable
as $$
#variable_conflict use_column
declare
  found_queue record;
begin
  select q.shards, b.burst, (l.override ->> 'burst')::double precision <= b.burst as by_people into found_queue
  from faultline.queues q
  join faultline.limits l on l.queue = q.name and l.group_key = ''
  cross join lateral (
    -- What is declared as well: it holds again after a reset.
    select least((l.effective ->> 'burst')::double precision, (l.declared ->> 'burst')::double precision) as burst
  ) b
  where q.name = check_shards.queue and b.burst < q.shards;
  if found then
    raise exception 'queue % cannot have % shards and a rate with a burst of %: each shard needs one job of the burst',
      check_shards.queue, found_queue.shards, found_queue.burst
      using errcode = 'FL005', detail = 'Nothing was changed.',
      hint = case when found_queue.by_people
        then format('A person has set this rate: raise its burst, or reset it (faultline limits reset %s), or declare fewer shards.',
          check_shards.queue)
        else 'Give the rate a burst of at least the number of shards, or declare fewer shards.' end;
  end if;
end
$$;
