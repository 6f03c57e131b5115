-- Groups whose time has come are ready again: there is a token, or a row may no longer be locked. A time that a clock set far
-- ahead is no time. They stand behind all that wait, and groups that come in later stand behind them.
create or replace function faultline.mark_groups_ready(
  inout limited_queue faultline.limited_queues, due timestamptz
)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  marked integer;
begin
  update faultline.groups g
  set ready = g.has_waiting, not_before = null,
      virtual_time = greatest(g.virtual_time, limited_queue.arrival_virtual_time + n.nth * 1e-9),
      changed_second = greatest(g.changed_second, extract(epoch from due)::bigint)
  from (
    select o.row_id, o.nth
    from (
      select o.ctid as row_id, row_number() over (order by o.not_before) as nth
      from faultline.groups o
      where o.queue = limited_queue.queue and o.not_before <= mark_groups_ready.due
      order by o.not_before
      limit 1000
    ) o
    offset 0
  ) n
  where g.ctid = n.row_id;
  get diagnostics marked = row_count;
  limited_queue.arrival_virtual_time := limited_queue.arrival_virtual_time + marked * 1e-9;
end
$$;
