-- Decide about the ticks of a schedule that have come due: record them, enqueue their jobs and move its position, all or none.
-- `revision` and `expected`, the next tick (null: none was known), are what the caller has computed from. If either is no
-- longer so, somebody else was faster or the schedule was changed, and nothing happens; likewise while another decides.
-- `fire`: ticks that make a job, in order. `missed`: runs of ticks that make none, as [{"from", "to", "ticks"}]. `next_at`:
-- the first tick after all of these; null: there is none.
-- Returns what became of each tick of `fire`: fired with its job, or skipped because of an overlap. What is on record
-- already makes no second job, whatever the caller says.
create or replace function faultline.tick(
  name text, revision bigint, expected timestamptz, fire timestamptz[], missed jsonb, next_at timestamptz
) returns table (
  at timestamptz,
  outcome text,
  job_id uuid
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  s faultline.schedules;
  clock timestamptz;
  first_due timestamptz;
  last_due timestamptz;
  busy uuid[];
  overlap text;
  is_new boolean;
begin
  perform faultline.require_synchronous_commit();
  select * into s from faultline.schedules c
  where c.name = tick.name and c.revision = tick.revision and c.next_at is not distinct from tick.expected
    and c.paused_at is null and c.ended_at is null
  for update skip locked;
  if not found then
    return;
  end if;
  clock := faultline.clock();
  select min(d.first), max(d.last) into first_due, last_due
  from (
    select f.at as first, f.at as last from unnest(tick.fire) as f (at)
    union all
    select m."from", m."to" from jsonb_to_recordset(tick.missed) as m ("from" timestamptz, "to" timestamptz)
  ) d;
  if (
    case
      -- From the expected tick on.
      when tick.expected is not null then first_due is distinct from tick.expected
      else first_due <= s.since
    end
    -- Nothing that has yet to come.
    or last_due > clock
    -- And forward.
    or tick.next_at <= greatest(last_due, s.since)
    or exists (
      select from unnest(tick.fire) with ordinality as f (at, position)
      where f.at is null or f.position > 1 and f.at <= tick.fire[f.position - 1]
    )
  ) then
    raise exception 'schedule %: these ticks do not follow its position', tick.name
      using errcode = 'FL005', hint = 'compute them from what due_schedules returns';
  end if;
  perform faultline.set_current_verb('tick');
  insert into faultline.ticks (schedule_id, at, kind, outcome, decided_at, last_at, ticks)
  select s.id, m."from", 'missed', 'missed', clock, m."to", m.ticks
  from jsonb_to_recordset(tick.missed) as m ("from" timestamptz, "to" timestamptz, ticks bigint)
  on conflict do nothing;
  overlap := coalesce(s.spec ->> 'overlap', 'allow');
  busy := s.jobs;
  foreach at in array tick.fire loop
    outcome := 'fired';
    job_id := null;
    if overlap <> 'allow' then
      busy := faultline.busy_jobs(busy);
      if overlap = 'skip' and cardinality(busy) >= 1 or overlap = 'one' and cardinality(busy) >= 2 then
        outcome := 'skipped';
      end if;
    end if;
    perform faultline.set_current_verb('tick');
    insert into faultline.ticks (schedule_id, at, kind, outcome, decided_at) values (s.id, at, 'tick', outcome, clock)
    on conflict do nothing;
    continue when not found;
    if outcome = 'fired' then
      if overlap = 'cancel' and not faultline.cancel_busy(busy) then
        -- A job is in a transaction of its own. The tick waits for it: nothing was decided.
        raise exception 'a job of schedule % cannot be cancelled now', tick.name using errcode = '55P03';
      end if;
      select e.job_id, e.created into job_id, is_new
      from faultline.enqueue_many(json_build_array(faultline.tick_job(s.name, s.spec, at, clock))) e;
      -- What stands in for a unique job is somebody else's, and may be the very job that it would wait for.
      if overlap = 'one' and is_new and cardinality(busy) > 0 and not faultline.wait_behind(job_id, busy[1]) then
        raise exception 'the job of schedule % that runs cannot be waited for now', tick.name using errcode = '55P03';
      end if;
      perform faultline.set_current_verb('tick');
      update faultline.ticks k set job_id = tick.job_id where k.schedule_id = s.id and k.at = tick.at and k.kind = 'tick';
      busy := case when overlap in ('skip', 'one') then busy || job_id else array[job_id] end;
    end if;
    return next;
  end loop;
  update faultline.schedules c
  set next_at = tick.next_at,
      last_at = greatest(c.last_at, last_due),
      look_at = tick.next_at,
      ended_at = case when tick.next_at is null then clock end,
      jobs = busy,
      failures = 0,
      failed_at = null,
      last_error = null
  where c.id = s.id;
  perform faultline.set_current_verb('');
end
$$;
