-- Record that the ticks of a schedule could not be decided about, and why: its job is refused, its rule or its time zone makes
-- no sense where it is computed. It is looked at again after 2 seconds, then 4, up to 5 minutes, and keeps nobody else waiting.
-- Returns whether it was recorded: not if the schedule has another revision by now. The journal gets an entry for a new error
-- only.
create or replace function faultline.schedule_failed(name text, revision bigint, error text) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  at constant timestamptz := faultline.clock();
  short constant text := left(schedule_failed.error, 2000);
  was faultline.schedules;
begin
  select * into was from faultline.schedules s
  where s.name = schedule_failed.name and s.revision = schedule_failed.revision
    and s.paused_at is null and s.ended_at is null and s.look_at <= at
  for update skip locked;
  if not found then
    return false;
  end if;
  update faultline.schedules s
  set failures = s.failures + 1,
      failed_at = coalesce(s.failed_at, at),
      last_error = short,
      look_at = at + make_interval(secs => least(300, 2 ^ least(s.failures + 1, 9)))
  where s.id = was.id;
  if was.last_error is distinct from short then
    insert into faultline.journal (at, event, detail)
    values (at, 'schedule_failed', jsonb_build_object('schedule', schedule_failed.name, 'error', short));
  end if;
  return true;
end
$$;
