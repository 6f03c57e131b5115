-- The job of one tick, as `enqueue_many` reads it. `at` is the tick, `now` the time: with jitter the job runs a little after
-- the later of both. How much later follows from name and tick, so it is the same whoever decides, and however often.
-- A group or unique key that is made from `tick_arg` is stored as a template (see fill_template): each tick has its own.
create or replace function faultline.tick_job(
  name text, spec json, at timestamptz, now timestamptz, jitter boolean default true
) returns json
language sql stable
as $$
  with late as (
    select greatest(tick_job.at, tick_job.now) + make_interval(secs => case when tick_job.jitter then coalesce((spec ->> 'jitter_seconds')::float8, 0) else 0 end * (
      ('x' || left(md5(tick_job.name || ' ' || extract(epoch from tick_job.at)), 8))::bit(32)::bigint / 4294967296.0::float8
    )) as run_at
  ),
  given as (
    select case when spec ->> 'tick_arg' is null then spec -> 'job' -> 'args' else (
      select json_object_agg(a.key, a.value)
      from (
        select o.key, o.value
        from json_each(case json_typeof(spec -> 'job' -> 'args') when 'object' then spec -> 'job' -> 'args' else '{}' end) o
        where o.key <> spec ->> 'tick_arg'
        union all
        -- As Python writes it: then a job that a program enqueues for this moment has the same arguments, and the same key.
        select spec ->> 'tick_arg', to_json(
          to_char(tick_job.at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS')
          || coalesce(nullif(to_char(tick_job.at at time zone 'UTC', '.US'), '.000000'), '') || '+00:00'
        )
      ) a
    ) end as args
  )
  select json_object_agg(f.name, f.value)
  from (
    select j.key as name, case
      when j.key = 'group' and json_typeof(j.value) = 'array'
        then to_json(faultline.fill_template(j.value::jsonb, given.args, 'the group of schedule ' || tick_job.name))
      when j.key = 'unique' and json_typeof(j.value -> 'key') = 'array'
        then jsonb_set(j.value::jsonb, '{key}', to_jsonb(
          faultline.fill_template((j.value -> 'key')::jsonb, given.args, 'the unique key of schedule ' || tick_job.name)
        ))::json
      else j.value
    end as value
    from json_each(spec -> 'job') j
    cross join given
    where j.key <> 'args'
    union all
    select 'args', given.args from given where given.args is not null
    union all
    -- Without it a job that is due now comes behind those that were due before.
    select 'run_at', to_json(to_char(late.run_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'))
    from late
    where late.run_at > tick_job.now
  ) f;
$$;
