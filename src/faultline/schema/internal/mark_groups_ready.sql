-- Groups whose time has come are ready again: there is a token, or a row may no longer be locked. A time that a clock set far
-- ahead is no time.
create or replace function faultline.mark_groups_ready(limited_queue faultline.limited_queues, due timestamptz) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  update faultline.groups g
  set ready = g.has_waiting, not_before = null, virtual_time = greatest(g.virtual_time, limited_queue.arrival_virtual_time),
      changed_second = greatest(g.changed_second, extract(epoch from due)::bigint)
  where g.ctid = any (array(
    select o.ctid
    from faultline.groups o
    where o.queue = limited_queue.queue and o.not_before <= mark_groups_ready.due
    order by o.not_before
    limit 1000
  ));
end
$$;
