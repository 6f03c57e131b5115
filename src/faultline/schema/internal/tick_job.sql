-- The job of one tick, as `enqueue_many` reads it. `at` is the tick, `now` the time: with jitter the job runs a little after
-- the later of both. How much later follows from name and tick, so it is the same whoever decides, and however often.
create or replace function faultline.tick_job(
  name text, spec json, at timestamptz, now timestamptz, jitter boolean default true
) returns json
language sql stable
as $$
  with late as (
    select greatest(tick_job.at, tick_job.now) + make_interval(secs => case when tick_job.jitter then coalesce((spec ->> 'jitter_seconds')::float8, 0) else 0 end * (
      ('x' || left(md5(tick_job.name || ' ' || extract(epoch from tick_job.at)), 8))::bit(32)::bigint / 4294967296.0::float8
    )) as run_at
  )
  select json_object_agg(f.name, f.value)
  from (
    select j.key as name, j.value from json_each(spec -> 'job') j
    where j.key <> 'args' or spec ->> 'tick_arg' is null
    union all
    select 'args', (
      select json_object_agg(a.key, a.value)
      from (
        select o.key, o.value
        from json_each(case json_typeof(spec -> 'job' -> 'args') when 'object' then spec -> 'job' -> 'args' else '{}' end) o
        where o.key <> spec ->> 'tick_arg'
        union all
        select spec ->> 'tick_arg', to_json(to_char(tick_job.at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"'))
      ) a
    )
    where spec ->> 'tick_arg' is not null
    union all
    -- Without it a job that is due now comes behind those that were due before.
    select 'run_at', to_json(to_char(late.run_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'))
    from late
    where late.run_at > tick_job.now
  ) f;
$$;
