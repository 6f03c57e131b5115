-- Read and check the jobs of a submission.

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

-- Read the text of a submission. Returns the same text as json. What makes no sense raises FL005 and says which job is
-- wrong, and why: no JSON, a number or an escape that PostgreSQL cannot store, a field that no job has, a value of another type.
-- Nothing is written here, so the blocks with handlers take no transaction ids.
create or replace function faultline.read_jobs(jobs text, at timestamptz, args_bytes_max integer) returns json
language plpgsql volatile
as $$
declare
  -- What a new job may be given, and what becomes of it something else.
  fields constant text[] := array(
    select f.name from json_object_keys(to_json(json_populate_record(null::faultline.new_jobs, '{}'))) as f (name)
    where f.name not in ('created_at', 'next_run_at', 'group_key', 'in_group', 'group_at', 'unique_key')
  ) || array['delay_seconds', 'run_at', 'expires_seconds', 'digest', 'group', 'unique'];
  texts constant text[] := array[
    'id', 'task', 'queue', 'group', 'idempotency_key', 'digest', 'trace', 'run_at', 'expires_at'
  ];
  document json;
  job record;
  wrong json;
  problem text;
  detail text;
begin
  begin
    document := read_jobs.jobs::json;
    if json_typeof(document) is distinct from 'array' then
      raise exception 'jobs must be a JSON array of objects' using errcode = 'FL005';
    end if;
    select j.ordinal, k.name into job
    from json_array_elements(document) with ordinality as j (value, ordinal)
    left join json_each(case json_typeof(j.value) when 'object' then j.value else '{}' end) as k (name, value) on true
    where json_typeof(j.value) <> 'object' or k.name <> all (fields)
      -- As text, 5 and 5.0 would be two names, and a list one that nobody has given.
      or k.name = any (texts) and json_typeof(k.value) not in ('string', 'null')
    order by j.ordinal
    limit 1;
    if found then
      perform faultline.reject_job(
        document, job.ordinal, read_jobs.args_bytes_max, case
          when job.name = any (texts) then format('its %s is not text', job.name)
          else 'no job has a field ' || to_json(job.name)
        end
      );
    end if;
    -- As jsonb as well: what is only JSON cannot be compared with another submission, nor shown.
    perform document::jsonb, count(p.task), max(p.next_run_at)
    from faultline.parse_new_jobs(document, read_jobs.at, read_jobs.args_bytes_max) p;
    return document;
  exception
    when data_exception or program_limit_exceeded then
      get stacked diagnostics detail = pg_exception_detail;
      problem := 'the jobs are refused: ' || concat_ws('. ', sqlerrm, nullif(detail, ''));
  end;
  for job in select j.value, j.ordinal from json_array_elements(document) with ordinality as j (value, ordinal) loop
    begin
      perform job.value::jsonb, count(p.task), max(p.next_run_at)
      from faultline.parse_new_jobs(json_build_array(job.value), read_jobs.at, read_jobs.args_bytes_max) p;
    exception
      when data_exception or program_limit_exceeded then
        get stacked diagnostics detail = pg_exception_detail;
        problem := concat_ws('. ', sqlerrm, nullif(detail, ''));
        wrong := job.value;
        exit;
    end;
  end loop;
  if wrong is not null then
    problem := format(
      'job %s of %s is refused: %s', job.ordinal, json_array_length(document), concat(faultline.unreadable_field(wrong), problem)
    );
  end if;
  raise exception '%', problem using errcode = 'FL005', detail = 'Nothing of this submission was enqueued.';
end
$$;

-- Raise FL005 for one invalid job of a submission: which one, and why. Never returns.
-- `ordinal` is its position in the submission, `otherwise` the problem if no other is found.
create or replace function faultline.reject_job(
  jobs json,
  ordinal bigint,
  args_bytes_max integer,
  otherwise text default null,
  at timestamptz default faultline.clock()
) returns text
language plpgsql volatile
as $$
declare
  job constant json := jobs -> (ordinal::integer - 1);
  task constant text := job ->> 'task';
  problem constant text := case
    when json_typeof(job) is distinct from 'object' then 'it is not a JSON object'
    when coalesce(length(task), 0) = 0 then 'it has no task'
    when length(task) > 200 then 'the name of its task is longer than 200 characters'
    when length(job ->> 'queue') = 0 then 'the name of its queue is empty'
    when length(job ->> 'queue') > 100 then 'the name of its queue is longer than 100 characters'
    when faultline.is_unreadable(job ->> 'queue', trimmed => true)
      then 'the name of its queue contains control characters, or begins or ends with white space'
    when json_typeof(job -> 'args') not in ('object', 'null') then 'its args are not a JSON object'
    when octet_length(job ->> 'args') > args_bytes_max
      then format('its args have %s bytes, more than the limit of %s', octet_length(job ->> 'args'), args_bytes_max)
    when length(job ->> 'idempotency_key') = 0 then 'its idempotency_key is empty'
    when length(job ->> 'idempotency_key') > 500 then 'its idempotency_key is longer than 500 characters'
    when (job ->> 'priority')::numeric not between -1000 and 1000 then 'its priority is outside -1000 to 1000'
    when (job ->> 'priority')::numeric % 1 <> 0 then 'its priority is not a whole number'
    when (job ->> 'max_attempts')::numeric not between 1 and 1000 then 'its max_attempts is outside 1 to 1000'
    when (job ->> 'max_attempts')::numeric % 1 <> 0 then 'its max_attempts is not a whole number'
    when (job ->> 'lease_seconds')::numeric not between 0.1 and 86400 then 'its lease is outside 0.1 to 86400 seconds'
    when (job ->> 'delay_seconds')::numeric < 0 then 'its delay is negative'
    when (job ->> 'delay_seconds')::numeric > 315360000 then 'its delay is longer than ten years'
    when job ->> 'delay_seconds' is not null and job ->> 'run_at' is not null then 'it has both a delay and a run_at'
    when length(job ->> 'group') = 0 then 'its group is empty'
    when length(job ->> 'group') > 200 then 'its group is longer than 200 characters'
    when job ->> 'group' = '*' then 'its group is "*", which means each group'
    when faultline.is_unreadable(job ->> 'group') then 'its group contains control characters'
    when job ->> 'run_at' !~ '([Zz]|[+-][0-9]{2}(:?[0-9]{2})?)$' then 'its run_at is not a time with a time zone'
    when otherwise is not null then otherwise
    when not faultline.is_time_ordered((job ->> 'id')::uuid) then 'its id is not a UUID of version 7'
    when job ->> 'run_at' is not null and (job ->> 'run_at')::timestamptz not between '1970-01-01Z' and '9999-01-01Z'
      then 'its run_at is outside the years 1970 to 9998'
    else coalesce(
      case when json_typeof(job -> 'unique') <> 'null' then faultline.unique_problem(
        job -> 'unique', job ->> 'delay_seconds' is not null or job ->> 'run_at' is not null
      ) end,
      faultline.expiry_problem(
        (job ->> 'expires_seconds')::numeric, job ->> 'expires_at',
        coalesce((job ->> 'delay_seconds')::numeric, (job -> 'unique' ->> 'debounce')::numeric), job ->> 'run_at', at
      ),
      'one of its fields is invalid'
    )
  end;
begin
  raise exception 'job % of % (task %) is refused: %', ordinal, json_array_length(jobs), coalesce(task, 'without name'), problem
    using errcode = 'FL005', detail = 'Nothing of this submission was enqueued.';
end
$$;

-- Name the field of a job that PostgreSQL cannot read, for a message: 'its priority: '. It does not say by itself which one it is:
-- the one that cannot be read alone either. Null if there is none, as when the name of a field cannot be read.
create or replace function faultline.unreadable_field(job json) returns text
language plpgsql stable
as $$
declare
  field record;
begin
  for field in select f.key, f.value from json_each(unreadable_field.job) f loop
    begin
      perform field.value::jsonb, count(p.task), max(p.next_run_at)
      from faultline.parse_new_jobs(
        json_build_array(json_build_object('task', 't', field.key, field.value)), faultline.clock(), 67108864
      ) p;
    exception
      when sqlstate 'FL005' then
        null;  -- read, and refused for something else
      when data_exception or program_limit_exceeded then
        return format('its %s: ', field.key);
    end;
  end loop;
  return null;
exception
  when data_exception or program_limit_exceeded then
    return null;
end
$$;

-- What is wrong with the expiry of a job that is enqueued at this time, for a message; null: nothing.
-- One that expires before it may run would never run: the one who enqueues it hears of it now, and not of a cancelled job later.
create or replace function faultline.expiry_problem(
  expires_seconds numeric, expires_at text, delay_seconds numeric, run_at text, at timestamptz
) returns text
language plpgsql immutable
as $$
begin
  return case
    when expires_seconds is not null and expires_at is not null then 'it has both expires_seconds and expires_at'
    when expires_seconds not between 0.001 and 315360000 then 'its expires_seconds is outside 0.001 to 315360000'
    when expires_at !~ '([Zz]|[+-][0-9]{2}(:?[0-9]{2})?)$' then 'its expires_at is not a time with a time zone'
    when expires_at::timestamptz not between '1970-01-01Z' and '9999-01-01Z'
      then 'its expires_at is outside the years 1970 to 9998'
    when expires_at::timestamptz <= at then 'its expires_at has passed already'
    when coalesce(expires_at::timestamptz, at + make_interval(secs => expires_seconds::float8))
      <= coalesce(run_at::timestamptz, at + make_interval(secs => delay_seconds::float8))
      then 'it expires before it may run'
  end;
end
$$;

-- What is wrong with `unique` of a job, for a message; null: nothing. `is_timed`: the job has a delay or a time of its own.
create or replace function faultline.unique_problem(spec json, is_timed boolean) returns text
language plpgsql immutable
as $$
declare
  unknown text;
begin
  if json_typeof(spec) is distinct from 'object' then
    return 'its unique is not a JSON object';
  end if;
  select f.name into unknown
  from json_object_keys(spec) as f (name)
  where f.name not in ('key', 'while', 'period', 'then', 'debounce', 'at_most')
  limit 1;
  return case
    when unknown is not null then 'its unique has a field ' || to_json(unknown) || ', which does not exist'
    when json_typeof(spec -> 'key') not in ('string', 'null') or length(spec ->> 'key') not between 1 and 500
      then 'the key of its unique is not text of 1 to 500 characters'
    when json_typeof(spec -> 'while') not in ('string', 'null') or spec ->> 'while' not in ('queued', 'open')
      then 'the while of its unique is not "queued", "open" or null'
    when json_typeof(spec -> 'then') not in ('string', 'null') or spec ->> 'then' not in ('keep', 'replace')
      then 'the then of its unique is not "keep" or "replace"'
    when json_typeof(spec -> 'period') not in ('number', 'null') or (spec ->> 'period')::numeric not between 0.001 and 315360000
      then 'the period of its unique is not a number of seconds above zero, of at most ten years'
    when json_typeof(spec -> 'debounce') not in ('number', 'null')
      or (spec ->> 'debounce')::numeric not between 0.001 and 315360000
      then 'the debounce of its unique is not a number of seconds above zero, of at most ten years'
    when json_typeof(spec -> 'at_most') not in ('number', 'null') or (spec ->> 'at_most')::numeric not between 0.001 and 315360000
      then 'the at_most of its unique is not a number of seconds above zero, of at most ten years'
    -- Absent, it is "queued".
    when json_typeof(spec -> 'while') = 'null' and spec ->> 'period' is null
      then 'its unique has neither while nor period, so no job would ever count as the same'
    when json_typeof(spec -> 'while') = 'null' and spec ->> 'debounce' is not null
      then 'its unique has a debounce without while: there would be no queued job to move'
    when spec ->> 'at_most' is not null and spec ->> 'debounce' is null
      then 'its unique has at_most without a debounce'
    when (spec ->> 'at_most')::numeric < (spec ->> 'debounce')::numeric
      then 'the at_most of its unique is shorter than its debounce'
    when is_timed and spec ->> 'debounce' is not null
      then 'its unique has a debounce, which is its delay; leave out delay_seconds and run_at'
  end;
end
$$;

-- A text over a task's arguments, as `attempt/templates.py` stores it, filled for those who publish:
-- [{"text": "tenant-", "path": ["tenant_id"], "default": "7"}, …]. An argument that is missing, null or no scalar raises FL005.
create or replace function faultline.fill_template(parts jsonb, args json, about text) returns text
language plpgsql immutable
as $$
declare
  part record;
  found text;
  filled text := '';
begin
  for part in
    select p.text, p.path, p."default"
    from jsonb_to_recordset(fill_template.parts) as p ("text" text, path text[], "default" text)
  loop
    filled := filled || coalesce(part.text, '');
    continue when part.path is null;
    found := case
      when fill_template.args -> part.path[1] is null then part."default"
      when json_typeof(fill_template.args #> part.path) not in ('object', 'array') then fill_template.args #>> part.path
    end;
    if found is null then
      raise exception '% is refused: % is missing or neither text nor a number',
        fill_template.about, array_to_string(part.path, '.')
        using errcode = 'FL005', detail = 'Nothing was enqueued.';
    end if;
    filled := filled || found;
  end loop;
  return filled;
end
$$;
