-- Rules of schedules: checked, declared, changed and compared.

-- Check what a schedule is to be. Raises FL005 and says what is wrong. Whether a cron line and a time zone make sense is
-- known to those who compute ticks: see core/cron.py.
create or replace function faultline.check_schedule(name text, spec json) returns void
language plpgsql volatile
as $$
declare
  fields constant text[] := array[
    'cron', 'tz', 'every', 'at', 'job', 'catch_up', 'catch_up_seconds', 'overlap', 'jitter_seconds', 'tick_arg'
  ];
  -- Of one job, or of its time, which follows from the tick.
  own constant text[] := array['id', 'idempotency_key', 'run_at', 'delay_seconds', 'expires_at', 'trace', 'digest'];
  moment constant text := '^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ]([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9]([.][0-9]{1,6})?)?'
    || '(Z|[+-][0-9]{2}(:?[0-9]{2})?)$';
  given jsonb;
  problem text;
  at constant timestamptz := faultline.clock();
begin
  perform faultline.check_name('the name of a schedule', check_schedule.name, 200);
  begin
    given := jsonb_strip_nulls(check_schedule.spec::jsonb);
    problem := case
      when given is null or jsonb_typeof(given) <> 'object' then 'it is not a JSON object'
      when exists (select from jsonb_object_keys(given) as k (name) where k.name <> all (fields)) then 'it has a field '
        || (select to_json(k.name) from jsonb_object_keys(given) as k (name) where k.name <> all (fields) limit 1)
        || ', and no schedule has that'
      when (given ? 'cron')::integer + (given ? 'every')::integer + (given ? 'at')::integer <> 1
        then 'it needs one rule: cron, every or at'
      when given ? 'cron' and (
        jsonb_typeof(given -> 'cron') <> 'string' or length(given ->> 'cron') > 200
        or cardinality(regexp_split_to_array(btrim(given ->> 'cron', e' \t'), '[[:space:]]+')) <> 5
      ) then 'its cron line does not have five fields'
      when given ? 'tz' and not given ? 'cron' then 'only a cron line has a time zone'
      when given ? 'tz' and (jsonb_typeof(given -> 'tz') <> 'string' or length(given ->> 'tz') not between 1 and 100)
        then 'its time zone is no name of one'
      when given ->> 'tz' ~* '^(localtime|posixrules|factory)$|^(/|posix/|right/)'
        then 'its time zone is whatever each host says; use a name such as Europe/Berlin or UTC'
      -- Those who compute ticks read numbers as numbers, and moments as ISO 8601 has them.
      when exists (
        select from unnest(array['every', 'catch_up_seconds', 'jitter_seconds']) as n (name)
        where jsonb_typeof(given -> n.name) <> 'number'
      ) then 'its times in seconds are not all numbers'
      when (given ->> 'every')::numeric not between 1 and 315360000 then 'its interval is not between 1 second and ten years'
      when given ? 'at' and (jsonb_typeof(given -> 'at') <> 'string' or given ->> 'at' !~ moment)
        then 'its moment is not a time with a time zone, such as 2027-01-31T06:00:00+00:00'
      when (given ->> 'at')::timestamptz not between '1970-01-01Z' and '9999-01-01Z'
        then 'its moment is outside the years 1970 to 9998'
      when given ->> 'catch_up' not in ('skip', 'latest', 'all') then 'catch_up is not skip, latest or all'
      when (given ->> 'catch_up_seconds')::numeric not between 0 and 315360000
        then 'catch_up_seconds is not between 0 and ten years'
      when given ->> 'overlap' not in ('allow', 'skip', 'one', 'cancel') then 'overlap is not allow, skip, one or cancel'
      when (given ->> 'jitter_seconds')::numeric not between 0 and 86400 then 'its jitter is not between 0 and 86400 seconds'
      when given ? 'tick_arg' and (jsonb_typeof(given -> 'tick_arg') <> 'string' or length(given ->> 'tick_arg') not between 1 and 200)
        then 'tick_arg is not the name of an argument'
      when jsonb_typeof(given -> 'job') is distinct from 'object' then 'it has no job'
      -- With tick_arg they would be left out.
      when jsonb_typeof(given -> 'job' -> 'args') <> 'object' then 'the args of its job are not a JSON object'
      when given -> 'job' ?| own then 'its job has ' || (
        select string_agg(k.name, ', ') from jsonb_object_keys(given -> 'job') as k (name) where k.name = any (own)
      ) || ', which belongs to a single job'
      when (given ->> 'jitter_seconds')::numeric > 0 and given -> 'job' -> 'unique' ->> 'debounce' is not null
        then 'its job has a debounce, which is its delay; leave the jitter out'
      when (given ->> 'jitter_seconds')::numeric >= (given -> 'job' ->> 'expires_seconds')::numeric
        then 'its job may expire before it runs; its jitter must be shorter than its expires_seconds'
    end;
  exception
    when data_exception or program_limit_exceeded then
      problem := sqlerrm;
  end;
  if problem is not null then
    raise exception 'schedule % is refused: %', check_schedule.name, problem
      using errcode = 'FL005', detail = 'Nothing was changed.';
  end if;
  -- A job that no queue would take would fail at every tick.
  perform faultline.read_jobs(
    json_build_array(faultline.tick_job(check_schedule.name, check_schedule.spec, at, at, false))::text, at,
    (select s.args_bytes_max from faultline.settings s)
  );
end
$$;

-- Raise FL005 unless every program can read this moment. `what` says whose it is. Null is no moment.
create or replace function faultline.check_moment(what text, moment timestamptz) returns void
language plpgsql stable
as $$
begin
  if date_part('year', timezone('UTC', check_moment.moment)) not between 1970 and 9999 then
    raise exception '% must be a moment from 1970 to 9999, not %', check_moment.what, check_moment.moment using errcode = 'FL005';
  end if;
end
$$;

-- The rule of a schedule alone: when it ticks. A schedule whose rule stays keeps its position.
create or replace function faultline.schedule_rule(spec json) returns jsonb
language sql immutable
as $$
  select jsonb_strip_nulls(jsonb_build_object(
    'cron', spec ->> 'cron', 'tz', spec ->> 'tz', 'every', (spec ->> 'every')::numeric, 'at', (spec ->> 'at')
  ));
$$;

-- From when on the ticks of a new schedule count: from now, and a single moment in any case. Whether that is caught up if it is
-- over, `catch_up` says.
create or replace function faultline.schedule_since(spec json, now timestamptz) returns timestamptz
language sql stable
as $$
  select least(schedule_since.now, (spec ->> 'at')::timestamptz - interval '1 microsecond');
$$;

-- Record in the journal what somebody did to a schedule. See signature. Without arguments of its job: these may be large.
create or replace function faultline.schedule_changed(name text, was json, value json, signed jsonb) returns void
language sql volatile
as $$
  insert into faultline.journal (at, event, detail)
  values (
    faultline.clock(), 'setting_changed',
    jsonb_build_object(
      'schedule', schedule_changed.name, 'setting', 'schedule ' || schedule_changed.name,
      'was', schedule_changed.was::jsonb #- '{job,args}', 'value', schedule_changed.value::jsonb #- '{job,args}'
    ) || signed
  );
$$;

-- Give a schedule another spec. Before: the caller has locked its row. With the same rule it keeps its position.
-- With another one, ticks from now on count; if a tick of the old rule is overdue, from that one on, so that a change in the
-- middle of an outage hides nothing. Never from before a tick that was decided about.
-- While overlaps are allowed, nobody remembers which jobs run. Once they are not, those of the last 10,000 ticks are looked up.
create or replace function faultline.change_schedule(id bigint, spec json, at timestamptz) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  perform faultline.set_current_verb('change_schedule');
  update faultline.schedules s
  set spec = change_schedule.spec,
      revision = s.revision + 1,
      changed_at = change_schedule.at,
      failures = 0,
      failed_at = null,
      last_error = null,
      next_at = case when same.rule then s.next_at end,
      since = case
        when same.rule then s.since
        else greatest(least(faultline.schedule_since(change_schedule.spec, change_schedule.at), s.next_at - interval '1 microsecond'), s.last_at)
      end,
      ended_at = case when same.rule then s.ended_at end,
      jobs = case
        when coalesce(s.spec ->> 'overlap', 'allow') = 'allow' and coalesce(change_schedule.spec ->> 'overlap', 'allow') <> 'allow'
          then faultline.busy_jobs(array(
            select l.job_id
            from (
              select k.at, k.job_id from faultline.ticks k
              where k.schedule_id = s.id and k.job_id is not null and k.outcome <> 'backfilled'
              order by k.at desc
              limit 10000
            ) l
            order by l.at
          ))
        else s.jobs
      end,
      look_at = case
        when s.paused_at is not null then null
        when not same.rule then change_schedule.at
        when s.ended_at is null then coalesce(s.next_at, change_schedule.at)
      end
  from (
    select faultline.schedule_rule(o.spec) = faultline.schedule_rule(change_schedule.spec) as rule
    from faultline.schedules o
    where o.id = change_schedule.id
  ) same
  where s.id = change_schedule.id;
  perform faultline.set_current_verb('');
end
$$;

-- Raise the error for a schedule that is not there. Never returns.
create or replace function faultline.no_schedule(name text) returns void
language plpgsql volatile
as $$
begin
  raise exception 'no schedule named "%"', no_schedule.name
    using errcode = 'FL004', detail = 'schedule', hint = 'faultline schedules lists them; one of the code is there once a worker with it has started, or by app.declare()';
end
$$;

-- Whether the schedule that had this name has another one now, by code that is not the caller's, which declares `names`: one that
-- is not among these; or one that is, and whose schedule has moved on likewise, to a name that is not. So older code, which
-- starts again after several schedules have passed their names on to one another, finds each of them.
create or replace function faultline.has_moved(name text, names text[]) returns boolean
language sql stable
as $$
  with recursive later as (
    select s.name from faultline.schedules s where s.was = has_moved.name
    union
    select s.name
    from later l
    join faultline.schedules s on s.was = l.name
    where l.name = any (has_moved.names)
  )
  select exists (select from later l where l.name <> all (has_moved.names));
$$;

-- Declarations of schedules, in the order in which they can be written: one that leaves its name comes before the one that takes it.
-- `names` are those that they declare.
create or replace function faultline.declarations_in_order(declarations json, names text[]) returns table (
  name text,
  digest text,
  was text,
  spec json
)
language plpgsql stable
as $$
#variable_conflict use_column
begin
  return query
    with recursive declared as (
      select d ->> 'name' as name, d ->> 'digest' as digest, (faultline.names_before(d))[1] as was, d -> 'spec' as spec
      from json_array_elements(declarations_in_order.declarations) d
    ),
    -- Who leaves a name to whom: as this code says, or, in a rollback, as the newer code has said.
    leaves as (
      select d.name as leaver, d.was as heir from declared d where d.was = any (names)
      union
      select s.was, s.name
      from faultline.schedules s
      join declared d on d.name = s.name and d.was is distinct from s.was
      where s.was = any (names)
    ),
    turns as (
      select d.name, 0 as turn from declared d
      union
      select l.heir, t.turn + 1
      from turns t
      join leaves l on l.leaver = t.name
      -- Two that swap their names have no first.
      where t.turn < cardinality(names)
    )
    select d.name, d.digest, d.was, d.spec
    from declared d
    -- A name that another had before is free once that one has its new name.
    order by (select max(t.turn) from turns t where t.name = d.name), coalesce(d.was, d.name), d.name;
end
$$;

-- The names that a schedule had before, as its declaration says: `was` is one, or several. The first is the one that it goes by: the
-- one that it is known to have had, or else the first that is in force. So code names all of them, and each environment finds its own,
-- however many renames it has seen.
create or replace function faultline.names_before(declaration json) returns text[]
language sql stable
as $$
  select array_agg(w.name order by coalesce(own.was = w.name, false) desc, own.id is null and s.id is not null desc, w.position)
  from json_array_elements_text(
    case json_typeof(names_before.declaration -> 'was')
      when 'array' then names_before.declaration -> 'was'
      else json_build_array(names_before.declaration -> 'was')
    end
  ) with ordinality as w (name, position)
  left join faultline.schedules own on own.name = names_before.declaration ->> 'name'
  left join faultline.schedules s on s.name = w.name;
$$;

-- Lock the schedule that a declaration is about: by its name, by its name before, or by its name after, since a rollback finds what the
-- newer code has renamed. Not one that the same code declares, as `names` and the digests `mine` say: there the old name was given to
-- another schedule. See has_moved. Returns null where there is none.
create or replace function faultline.find_declared(name text, was text, names text[], mine text[]) returns faultline.schedules
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  found_row faultline.schedules;
begin
  select s.* into found_row
  from faultline.schedules s
  where s.name = find_declared.name
    or (
      (s.name = find_declared.was or s.was = find_declared.name and faultline.has_moved(find_declared.name, names))
      and not coalesce(s.digest = any (mine), false)
      and not exists (select from faultline.schedules o where o.name = find_declared.name)
    )
  order by s.id
  limit 1
  for update;
  return found_row;
end
$$;

-- Whether a worker that is alive has this declaration of a schedule in its code.
-- A worker that has sent no heartbeat for 15 seconds does not count: if it lives, it has not ticked meanwhile either, and
-- finds that others have taken over.
create or replace function faultline.live_digest(digest text) returns boolean
language sql volatile
as $$
  select exists (
    select from faultline.workers w
    where live_digest.digest = any (w.schedules) and w.heartbeat_at > faultline.clock() - interval '15 seconds'
  );
$$;
