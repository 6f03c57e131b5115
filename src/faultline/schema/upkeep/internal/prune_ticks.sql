-- Delete what was decided about ticks before `horizon`, and schedules made at run time that ended before; bring schedules back whose
-- position is that of a clock that was ahead. Before: `faultline.verb` is prune. Returns how many ticks are gone.
create or replace function faultline.prune_ticks(horizon timestamptz, max_rows integer, out gone integer)
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  delete from faultline.ticks t
  where t.ctid = any (array(
    select o.ctid from faultline.ticks o
    where o.decided_at < horizon
    order by o.decided_at
    limit prune_ticks.max_rows
    for update skip locked
  ));
  get diagnostics gone = row_count;
  -- There are few schedules: all are looked at.
  perform faultline.set_back_schedules();
  delete from faultline.schedules s
  where s.id = any (array(
    select o.id from faultline.schedules o
    where o.ended_at < horizon and o.digest is null
    limit prune_ticks.max_rows
    for update skip locked
  ));
end
$$;
