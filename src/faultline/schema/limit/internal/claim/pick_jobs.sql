-- The next jobs of a queue with limits, up to `room`: their ctids, locked. Before: the caller holds the queue's lock. After:
-- groups have their new virtual times, tokens and permits.
-- `ready`, `kept`: see apply_until_room. `divides`: each kind of jobs gets a part at most, and `divided` says that it was so.
create or replace function faultline.pick_jobs(
  inout limited_queue faultline.limited_queues, due timestamptz, room integer, ready boolean, kept boolean, divides boolean,
  out ctids tid[], out divided boolean
)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  -- Jobs of no group get half of the room where groups wait too.
  mixed constant boolean := divides and (ready or kept) and faultline.has_due_ungrouped(limited_queue.queue, due);
  part record;
begin
  divided := mixed or divides and ready and kept;
  ctids := '{}';
  if kept then
    -- Heads of groups that keep their order get half of it where others wait: they may come again and again.
    ctids := faultline.pick_permit_holders(
      limited_queue, due, case when divided then (room + (random() < 0.5)::integer) / 2 else room end
    );
  end if;
  if ready then
    part := faultline.pick_groups(
      limited_queue, due,
      case when mixed then (room - cardinality(ctids) + (random() < 0.5)::integer) / 2 else room - cardinality(ctids) end
    );
    limited_queue := part.limited_queue;
    ctids := ctids || part.ctids;
  end if;
  if mixed or not (ready or kept) then
    ctids := ctids || faultline.pick_ungrouped(limited_queue.queue, due, room - cardinality(ctids));
  end if;
end
$$;
