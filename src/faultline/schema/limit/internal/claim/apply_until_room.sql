-- Apply what happened to the groups of a queue until there is something to grant, or nothing may be granted, or all was applied.
-- Before: the caller holds the queue's lock. After: `due` is a moment by which every job has ended whose permit may be granted now.
-- `ready`: a group has a job that may be granted. `kept`: a job that kept its group's permit is due.
create or replace function faultline.apply_until_room(
  inout limited_queue faultline.limited_queues, fields jsonb, max_jobs integer,
  out due timestamptz, out room integer, out ready boolean, out kept boolean
)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  part record;
  later boolean;
begin
  due := faultline.clock();
  for nth in 1..20 loop
    -- Each job comes in and ends: of less than twice as many groups as it grants, claims would fall behind.
    part := faultline.apply_group_events(limited_queue, due, greatest(500, 2 * max_jobs));
    limited_queue := part.limited_queue;
    limited_queue.unfinished := part.more;
    due := faultline.clock();
    later := exists (select from faultline.groups g where g.queue = limited_queue.queue and g.not_before <= due);
    ready := later or faultline.has_ready_group(limited_queue);
    kept := exists (
      select from faultline.open_jobs r
      where r.queue = limited_queue.queue and r.state = 'queued' and r.group_key is not null and r.in_group is null
        and r.has_permit and r.next_run_at <= due
    );
    part := faultline.queue_room(limited_queue, fields, due);
    limited_queue := part.limited_queue;
    room := least(part.room, max_jobs);
    exit when not limited_queue.unfinished or room <= 0 or ready or kept;
  end loop;
  if later then
    limited_queue := faultline.mark_groups_ready(limited_queue, due);
  end if;
end
$$;
