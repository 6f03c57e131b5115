-- Run the job of a schedule now, beside its ticks, also while it is paused. Returns the job. Its ticks go on as they would.
-- The journal records who did it and why: see signature.
-- With `only_queues`, a schedule whose jobs go to another queue is not found.
create or replace function faultline.run_schedule(
  name text, by text default null, reason text default null, only_queues text[] default null
) returns uuid
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  signed constant jsonb := faultline.signature(run_schedule.by, run_schedule.reason);
  found_at timestamptz;
  s faultline.schedules;
  made uuid;
begin
  perform faultline.require_synchronous_commit();
  select * into s from faultline.schedules c
  where c.name = run_schedule.name
    and (run_schedule.only_queues is null or coalesce(c.spec -> 'job' ->> 'queue', 'default') = any (run_schedule.only_queues))
  for update;
  if not found then
    perform faultline.no_schedule(run_schedule.name);
  end if;
  -- Behind a run in the same microsecond.
  found_at := greatest(faultline.clock(), (
    select max(k.at) + interval '1 microsecond' from faultline.ticks k
    where k.schedule_id = s.id and k.kind = 'manual' and k.at >= faultline.clock()
  ));
  select e.job_id into made
  from faultline.enqueue_many(json_build_array(
    faultline.tick_job(s.name, s.spec, found_at, found_at, false)
  )) e;
  perform faultline.set_current_verb('run_schedule');
  insert into faultline.ticks (schedule_id, at, kind, outcome, decided_at, job_id)
  values (s.id, found_at, 'manual', 'manual', faultline.clock(), made);
  perform faultline.set_current_verb('');
  -- The next tick sees that it runs, if it cares.
  update faultline.schedules c
  set jobs = (array_append(faultline.busy_jobs(s.jobs), made))[:100]
  where c.id = s.id;
  perform faultline.schedule_changed(
    s.name, null, json_build_object('run_now', made), signed
  );
  return made;
end
$$;
