-- What the program of a job has called so far, in the order of its numbers: what a resumed program needs before it goes on.
-- `is_over` says whether the time of a call is over by the clock of the database.
-- Needs no lease: a stale worker reads the right history, and is refused when it writes.
create or replace function faultline.history(job_id uuid) returns table (
  number text,
  kind text,
  name text,
  digest text,
  call_id bigint,
  until timestamptz,
  is_over boolean,
  policy text,
  total integer,
  spawned integer,
  tries integer,
  outcome text,
  result jsonb,
  error text,
  doubtful boolean
)
language sql stable security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan
as $$
  select
    c.number, c.kind, c.name, c.digest, c.id, c.until, coalesce(c.until <= faultline.clock(), false), c.policy, c.total, c.spawned,
    c.tries, c.outcome, c.result, c.error, c.doubtful
  from faultline.calls c
  -- '0.0' has the jobs of earlier rounds, '0.0.7' those of a call that was forgotten: no calls of this program.
  where c.job_id = history.job_id and (c.number !~ '^0[.]0([.]|$)' or c.number = '0.0.0')
  order by string_to_array(c.number, '.')::numeric[];
$$;
