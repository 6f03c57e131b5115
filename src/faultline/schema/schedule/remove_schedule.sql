-- Remove a schedule. Its jobs stay, and so does its history until it is pruned. Returns whether there was one.
-- One that the code of a living worker has is refused (FL002): that worker would make it again. Pause it, or take it from
-- the code first. The journal records who did it and why: see signature.
-- With `only_queues`, a schedule whose jobs go to another queue is not found.
create or replace function faultline.remove_schedule(
  name text, by text default null, reason text default null, only_queues text[] default null
) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  signed constant jsonb := faultline.signature(remove_schedule.by, remove_schedule.reason);
  was faultline.schedules;
begin
  perform faultline.check_name('the name of a schedule', remove_schedule.name, 200, known => true);
  perform faultline.require_synchronous_commit();
  select * into was from faultline.schedules s
  where s.name = remove_schedule.name
    and (remove_schedule.only_queues is null or coalesce(s.spec -> 'job' ->> 'queue', 'default') = any (remove_schedule.only_queues))
  for update;
  if not found then
    return false;
  end if;
  if faultline.live_digest(was.digest) then
    raise exception 'schedule % is in the code of a worker that runs, which would make it again', remove_schedule.name
      using errcode = 'FL002', hint = 'pause it, or take it from the code and deploy that first';
  end if;
  perform faultline.set_current_verb('remove_schedule');
  delete from faultline.schedules s where s.id = was.id;
  perform faultline.set_current_verb('');
  perform faultline.schedule_changed(remove_schedule.name, was.spec, null, signed);
  return true;
end
$$;
