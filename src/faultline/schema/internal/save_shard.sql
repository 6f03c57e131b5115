-- Write what the holder of a shard's lock has counted, if anything changed.
create or replace function faultline.save_shard(was faultline.shards, is_now faultline.shards, due timestamptz) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  if was is not distinct from is_now then
    return;
  end if;
  update faultline.shards s
  set epoch = greatest(s.epoch, extract(epoch from due)::bigint),
      holding = is_now.holding,
      lent = is_now.lent,
      tokens = is_now.tokens,
      refilled_at = is_now.refilled_at,
      hungry = is_now.hungry,
      seen_to = is_now.seen_to,
      seen_open = is_now.seen_open,
      heard_all_at = is_now.heard_all_at,
      cluster = is_now.cluster,
      turn = is_now.turn,
      entry = is_now.entry
  where s.queue = was.queue and s.shard = was.shard and s.epoch = was.epoch;
end
$$;
