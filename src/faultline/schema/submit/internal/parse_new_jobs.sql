-- Read and check the jobs of a submission, as rows of the view `new_jobs`: the same columns in the same order, and no more.
-- An invalid job raises FL005, which says which job it is, and why.
-- Called `stable`, though it makes ids, so that the planner unfolds it into the statement that uses it.
create or replace function faultline.parse_new_jobs(jobs json, at timestamptz, args_bytes_max integer) returns table (
  id uuid,
  task text,
  args json,
  queue text,
  priority smallint,
  next_run_at timestamptz,
  max_attempts smallint,
  lease_seconds real,
  keep_args boolean,
  idempotency_key text,
  trace text,
  created_at timestamptz,
  expires_at timestamptz,
  group_key text,
  in_group boolean,
  group_at timestamptz,
  unique_key text
)
language sql stable
as $$
  select
    coalesce(j.id, faultline.new_id(j.position)) as id,
    -- Before the values that an invalid job may not have.
    case
      when coalesce(length(j.task), 0) not between 1 and 200
        or not faultline.is_time_ordered(j.id)
        or length(j.queue) not between 1 and 100
        or faultline.is_unreadable(j.queue, trimmed => true)
        or json_typeof(j.args) not in ('object', 'null')
        or octet_length(j.args::text) > parse_new_jobs.args_bytes_max
        or length(j.idempotency_key) not between 1 and 500
        or j.priority not between -1000 and 1000 or j.priority % 1 <> 0
        or j.max_attempts not between 1 and 1000 or j.max_attempts % 1 <> 0
        or j.lease_seconds not between 0.1 and 86400
        or j.delay_seconds not between 0 and 315360000
        or (j.delay_seconds is not null and j.run_at is not null)
        or j.run_at !~ '([Zz]|[+-][0-9]{2}(:?[0-9]{2})?)$'
        or length(j.group_key) not between 1 and 200 or j.group_key = '*' or faultline.is_unreadable(j.group_key)
        or j.run_at::timestamptz not between '1970-01-01Z' and '9999-01-01Z'
        or j.expires_seconds not between 0.001 and 315360000
        or (j.expires_seconds is not null or j.expires_at is not null) and faultline.expiry_problem(
          j.expires_seconds, j.expires_at, coalesce(j.delay_seconds, (j."unique" ->> 'debounce')::numeric), j.run_at,
          parse_new_jobs.at
        ) is not null
        or j."unique" is not null and faultline.unique_problem(
          j."unique", j.delay_seconds is not null or j.run_at is not null
        ) is not null
      then faultline.reject_job(parse_new_jobs.jobs, j.position, parse_new_jobs.args_bytes_max, null, parse_new_jobs.at)
      else j.task
    end as task,
    case when json_typeof(j.args) = 'object' then j.args else '{}' end as args,
    coalesce(j.queue, 'default') as queue,
    coalesce(j.priority, 0)::smallint as priority,
    case when w.waits then '9999-01-01Z' else d.due end as next_run_at,
    coalesce(j.max_attempts, 5)::smallint as max_attempts,
    coalesce(j.lease_seconds, 30)::real as lease_seconds,
    coalesce(j.keep_args, true) as keep_args,
    j.idempotency_key,
    -- As long as W3C makes it, and no longer: nobody's store of text.
    left(j.trace, 55) as trace,
    parse_new_jobs.at as created_at,
    coalesce(j.expires_at::timestamptz, parse_new_jobs.at + make_interval(secs => j.expires_seconds::float8)) as expires_at,
    j.group_key,
    w.waits as in_group,
    case when w.waits then d.due end as group_at,
    -- Without a key of its own, a job is the same as one of the same task with the same arguments.
    case when j."unique" is not null then coalesce(
      j."unique" ->> 'key',
      j.task || ':' || encode(
        faultline.digest(j.task, case when json_typeof(j.args) = 'object' then j.args else '{}' end), 'hex'
      )
    ) end as unique_key
  from rows from (json_to_recordset(parse_new_jobs.jobs) as (
    id uuid, task text, args json, queue text, priority numeric, delay_seconds numeric, run_at text,
    max_attempts numeric, lease_seconds numeric, keep_args boolean, idempotency_key text, trace text,
    expires_seconds numeric, expires_at text, "group" text, "unique" json
  )) with ordinality as j (
    id, task, args, queue, priority, delay_seconds, run_at, max_attempts, lease_seconds, keep_args, idempotency_key, trace,
    expires_seconds, expires_at, group_key, "unique", position
  )
  cross join lateral (
    select coalesce(
      j.run_at::timestamptz, parse_new_jobs.at + make_interval(secs => j.delay_seconds::float8), parse_new_jobs.at
    ) as due
  ) d
  cross join lateral (
    -- One that is due waits in its group, if the queue has limits. All others go there when they are due.
    select case when j.group_key is not null and d.due <= parse_new_jobs.at then nullif(exists (
      select from faultline.queues q where q.name = coalesce(j.queue, 'default') and q.limited
    ), false) end as waits
  ) w
$$;
