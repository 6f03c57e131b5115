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
