-- Put one job into a queue and answer with its id. `select faultline.enqueue('mail', '{"to": "ada@example.org"}')`
-- is all that psql, a trigger or a program in another language needs. Everything else is enqueue_many's.
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
  keep_args boolean default true
) returns uuid
language sql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan
as $$
  select job_id
  from faultline.enqueue_many(jsonb_build_array(jsonb_build_object(
    'task', task,
    'args', args,
    'queue', queue,
    'priority', priority,
    'delay_seconds', extract(epoch from delay),
    'run_at', run_at,
    'max_attempts', max_attempts,
    'lease_seconds', extract(epoch from lease),
    'idempotency_key', idempotency_key,
    'id', id,
    'keep_args', keep_args
  )));
$$;
