-- Resume a schedule. Returns whether it was paused. Ticks from now on count, or from `next_at` on: what was paused on purpose
-- is not caught up. The journal records who did it and why: see signature.
-- With `only_queues`, a schedule whose jobs go to another queue is not found.
create or replace function faultline.resume_schedule(
  name text, next_at timestamptz default null, by text default null, reason text default null, only_queues text[] default null
) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  signed constant jsonb := faultline.signature(resume_schedule.by, resume_schedule.reason);
  was faultline.schedules;
  at timestamptz;
begin
  perform faultline.require_synchronous_commit();
  select * into was from faultline.schedules s
  where s.name = resume_schedule.name
    and (resume_schedule.only_queues is null or coalesce(s.spec -> 'job' ->> 'queue', 'default') = any (resume_schedule.only_queues))
  for update;
  if not found then
    perform faultline.no_schedule(resume_schedule.name);
  end if;
  perform faultline.check_moment(format('the next tick of schedule %s', resume_schedule.name), resume_schedule.next_at);
  at := faultline.clock();
  if resume_schedule.next_at <= at then
    raise exception 'schedule % cannot be resumed with a next tick at %, which is over', resume_schedule.name, resume_schedule.next_at
      using errcode = 'FL005', hint = 'leave next_at out, or backfill what was paused';
  end if;
  if was.paused_at is null then
    return false;
  end if;
  perform faultline.set_current_verb('resume_schedule');
  update faultline.schedules s
  set paused_at = null,
      revision = s.revision + 1,
      next_at = resume_schedule.next_at,
      since = greatest(at, s.last_at),
      look_at = case when s.ended_at is null then coalesce(resume_schedule.next_at, at) end,
      changed_at = at,
      changed_by = signed ->> 'by',
      reason = signed ->> 'reason'
  where s.id = was.id;
  perform faultline.set_current_verb('');
  insert into faultline.journal (at, event, detail)
  values (at, 'resumed', jsonb_build_object(
    'schedule', resume_schedule.name, 'name', 'schedule ' || resume_schedule.name, 'paused_at', was.paused_at
  ) || signed);
  return true;
end
$$;
