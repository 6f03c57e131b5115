-- Write what the holder of a queue's lock has counted, if anything changed.
create or replace function faultline.save_limited_queue(
  was faultline.limited_queues, is_now faultline.limited_queues, due timestamptz
) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  if was is not distinct from is_now then
    return;
  end if;
  update faultline.limited_queues l
  set changed_second = greatest(l.changed_second, extract(epoch from due)::bigint),
      holding = is_now.holding,
      tokens = is_now.tokens,
      refilled_at = is_now.refilled_at,
      has_unmet_demand = is_now.has_unmet_demand,
      unfinished = is_now.unfinished,
      seen_to = is_now.seen_to,
      seen_open = is_now.seen_open,
      all_events_applied_at = is_now.all_events_applied_at,
      cluster = is_now.cluster,
      virtual_time = is_now.virtual_time,
      arrival_virtual_time = is_now.arrival_virtual_time
  where l.queue = was.queue and l.changed_second = was.changed_second;
end
$$;
