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
  busy := s.jobs;
  foreach at in array tick.fire loop
    select f.* into busy, outcome, job_id from faultline.fire_tick(s, at, clock, busy) f;
    continue when outcome is null;
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
