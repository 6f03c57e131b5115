-- Enqueue one job and return its id. `select faultline.enqueue('mail', '{"to": "ada@example.org"}')`
-- is all that psql, a trigger or a program in another language needs. The text of the arguments is stored as given.
--
-- A plain job is inserted here, with plans that PostgreSQL keeps: a trigger that enqueues a job for each row costs little
-- more than one that inserts a row. `enqueue_many` enqueues all others, and explains what is wrong with an invalid one.
create or replace function faultline.enqueue(
  task text,
  args text,
  queue text default 'default',
  priority integer default 0,
  delay interval default null,
  run_at timestamptz default null,
  max_attempts integer default 5,
  lease interval default '30 seconds',
  idempotency_key text default null,
  id uuid default null,
  keep_args boolean default true,
  "group" text default null
) returns uuid
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  at constant timestamptz := faultline.clock();
  due timestamptz;
  fits boolean := octet_length(enqueue.args) <= 1024;
  is_object boolean;
  why text;
  new_id uuid;
begin
  begin
    -- As jsonb: PostgreSQL cannot store every escape and number that is valid JSON.
    is_object := jsonb_typeof(enqueue.args::jsonb) = 'object';
  exception
    when data_exception or program_limit_exceeded then
      get stacked diagnostics why = pg_exception_detail;
      raise exception 'job 1 of 1 (task %) is refused: its args cannot be stored: %',
        coalesce(enqueue.task, 'without name'), concat_ws('. ', sqlerrm, nullif(why, ''))
        using errcode = 'FL005', detail = 'Nothing of this submission was enqueued.';
  end;
  if fits is false then
    fits := octet_length(enqueue.args) <= (select s.args_bytes_max from faultline.settings s);
  end if;
  -- `is not true`, so that a null counts as invalid.
  if (
    enqueue.idempotency_key is null
    and enqueue.id is null
    and enqueue."group" is null
    and length(enqueue.task) between 1 and 200
    and length(enqueue.queue) between 1 and 100
    and not faultline.is_unreadable(enqueue.queue, trimmed => true)
    and fits
    and is_object
    and enqueue.priority between -1000 and 1000
    and enqueue.max_attempts between 1 and 1000
    and extract(epoch from enqueue.lease) between 0.1 and 86400
    and (enqueue.delay is null or extract(epoch from enqueue.delay) between 0 and 315360000)
    and (enqueue.run_at is null or enqueue.run_at between '1970-01-01Z' and '9999-01-01Z')
    and (enqueue.delay is null or enqueue.run_at is null)
    and enqueue.keep_args is not null
  ) is not true then
    return (
      select e.job_id
      from faultline.enqueue_many(
        json_build_array(json_build_object(
          'task', enqueue.task,
          'args', enqueue.args::json,
          'queue', enqueue.queue,
          'priority', enqueue.priority,
          'delay_seconds', extract(epoch from enqueue.delay),
          'run_at', enqueue.run_at,
          'max_attempts', enqueue.max_attempts,
          'lease_seconds', extract(epoch from enqueue.lease),
          'idempotency_key', enqueue.idempotency_key,
          'id', enqueue.id,
          'keep_args', enqueue.keep_args,
          'group', enqueue."group"
        ))::text
      ) e
    );
  end if;
  -- After the checks: a very long delay would overflow.
  due := coalesce(enqueue.run_at, at + make_interval(secs => extract(epoch from enqueue.delay)::float8), at);
  new_id := faultline.new_id(1);
  perform faultline.insert_one(
    new_id, enqueue.task, enqueue.args, enqueue.queue, enqueue.priority, due, enqueue.max_attempts,
    extract(epoch from enqueue.lease)::float8, enqueue.keep_args, null, at
  );
  return new_id;
end
$$;

-- The same for json arguments. Their text is stored as given too.
create or replace function faultline.enqueue(
  task text,
  args json,
  queue text default 'default',
  priority integer default 0,
  delay interval default null,
  run_at timestamptz default null,
  max_attempts integer default 5,
  lease interval default '30 seconds',
  idempotency_key text default null,
  id uuid default null,
  keep_args boolean default true,
  "group" text default null
) returns uuid
language sql volatile
as $$
  select faultline.enqueue(
    $1, $2::text, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12
  );
$$;

-- The same for jsonb arguments, and for no arguments.
create or replace function faultline.enqueue(
  task text,
  args jsonb default '{}',
  queue text default 'default',
  priority integer default 0,
  delay interval default null,
  run_at timestamptz default null,
  max_attempts integer default 5,
  lease interval default '30 seconds',
  idempotency_key text default null,
  id uuid default null,
  keep_args boolean default true,
  "group" text default null
) returns uuid
language sql volatile
as $$
  select faultline.enqueue(
    task, args::text, queue, priority, delay, run_at, max_attempts, lease, idempotency_key, id, keep_args, "group"
  );
$$;
