-- Pause a schedule: none of its ticks makes a job until it is resumed, and none of them is caught up then. Returns since
-- when. Paused twice, it keeps the first time and the last reason. The journal records who did it and why: see signature.
-- With `only_queues`, a schedule whose jobs go to another queue is not found.
create or replace function faultline.pause_schedule(
  name text, by text default null, reason text default null, only_queues text[] default null
) returns timestamptz
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  signed constant jsonb := faultline.signature(pause_schedule.by, pause_schedule.reason);
  was faultline.schedules;
  at timestamptz;
begin
  perform faultline.require_synchronous_commit();
  select * into was from faultline.schedules s
  where s.name = pause_schedule.name
    and (pause_schedule.only_queues is null or coalesce(s.spec -> 'job' ->> 'queue', 'default') = any (pause_schedule.only_queues))
  for update;
  if not found then
    perform faultline.no_schedule(pause_schedule.name);
  end if;
  at := faultline.clock();
  update faultline.schedules s
  set paused_at = coalesce(s.paused_at, at),
      look_at = null,
      revision = s.revision + case when s.paused_at is null then 1 else 0 end,
      changed_at = at,
      changed_by = signed ->> 'by',
      reason = signed ->> 'reason'
  where s.id = was.id;
  if was.paused_at is null or (was.changed_by, was.reason) is distinct from (signed ->> 'by', signed ->> 'reason') then
    insert into faultline.journal (at, event, detail)
    values (at, 'paused', jsonb_build_object(
      'schedule', pause_schedule.name, 'name', 'schedule ' || pause_schedule.name
    ) || signed);
  end if;
  return coalesce(was.paused_at, at);
end
$$;
