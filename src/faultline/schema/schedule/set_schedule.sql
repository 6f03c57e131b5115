-- Make a schedule, or change one: a rule, a job, and what to do about missed ticks and overlaps. Returns whether this
-- changed anything.
-- `spec` has one of `cron` (with `tz`), `every` (seconds) and `at` (a moment); `job`, as for enqueue_many without what belongs
-- to one job alone; and where wanted `catch_up` (skip, latest, all), `catch_up_seconds`, `overlap` (allow, skip, one, cancel),
-- `jitter_seconds`, and `tick_arg`, the argument that gets the moment of the tick.
-- A schedule of the code gets this instead of what the code says, until it is set to null. With the same rule it keeps its
-- position. The journal records who did it and why (see signature), once, even if the call is sent again.
-- With `only_queues`, its jobs may go to these queues only, before and after (FL002).
create or replace function faultline.set_schedule(
  name text, spec json, by text default null, reason text default null, only_queues text[] default null
) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  signed constant jsonb := faultline.signature(set_schedule.by, set_schedule.reason);
  wanted json := set_schedule.spec;
  was faultline.schedules;
  at timestamptz;
begin
  if wanted is not null then
    perform faultline.check_schedule(set_schedule.name, wanted);
  end if;
  perform faultline.require_synchronous_commit();
  select * into was from faultline.schedules s where s.name = set_schedule.name for update;
  at := faultline.clock();
  if wanted is null then
    if was.declared is null then
      raise exception 'no schedule named "%" is in the code of a worker', set_schedule.name
        using errcode = 'FL004', detail = 'schedule', hint = 'only a schedule of the code can go back to what the code says';
    end if;
    wanted := was.declared;
  end if;
  if exists (
    select from unnest(array[was.spec, wanted]) as o (spec)
    where coalesce(o.spec -> 'job' ->> 'queue', 'default') <> all (set_schedule.only_queues) and o.spec is not null
  ) then
    raise exception 'the name "%" is taken by a schedule of another queue', set_schedule.name
      using errcode = 'FL002', hint = 'choose another name, or one of your queues';
  end if;
  if was.spec::jsonb = wanted::jsonb and was.overridden = (was.declared is not null and set_schedule.spec is not null) then
    return false;
  end if;
  if was.id is null then
    insert into faultline.schedules as s (
      name, spec, since, look_at, created_at, changed_at, changed_by, reason
    )
    values (
      set_schedule.name, wanted, faultline.schedule_since(wanted, at), at, at, at, signed ->> 'by', signed ->> 'reason'
    )
    on conflict (name) do nothing;
    if not found then
      -- Another session has just made it: change that one.
      return faultline.set_schedule(
        set_schedule.name, set_schedule.spec, set_schedule.by, set_schedule.reason, set_schedule.only_queues
      );
    end if;
  else
    perform faultline.change_schedule(was.id, wanted, at);
    update faultline.schedules s
    set overridden = s.declared is not null and set_schedule.spec is not null,
        changed_by = signed ->> 'by',
        reason = signed ->> 'reason'
    where s.id = was.id;
  end if;
  perform faultline.schedule_changed(set_schedule.name, was.spec, wanted, signed);
  return true;
end
$$;
