-- Whether a queue has events that are not applied yet. By the numbers of transactions, as `apply_group_events` looks:
-- the entries of events that were applied stay until they are vacuumed, and would all be walked.
create or replace function faultline.has_unapplied_events(limited_queue faultline.limited_queues) returns boolean
language plpgsql stable
as $$
#variable_conflict use_column
declare
  -- The numbers of another cluster say nothing.
  bound constant xid8 := case
    when limited_queue.cluster = faultline.cluster() and limited_queue.seen_to <= pg_snapshot_xmax(pg_current_snapshot())
      then limited_queue.seen_to
    else '0'
  end;
begin
  return exists (
    select from faultline.group_events e where e.queue = limited_queue.queue and not e.arrival and e.xid >= bound
  ) or exists (
    select from faultline.group_events e where e.queue = limited_queue.queue and e.arrival and e.xid >= bound
  ) or exists (
    select
    from unnest(limited_queue.seen_open) as x (xid)
    cross join (values (false), (true)) as k (arrival)
    -- Each is looked up by itself: a list may be compared with every entry.
    cross join lateral (
      select from faultline.group_events e
      where e.queue = limited_queue.queue and e.arrival = k.arrival and e.xid = x.xid
      limit 1
    ) e
  );
end
$$;
