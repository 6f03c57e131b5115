-- The stored result of a step of this job, from this attempt or an earlier one. No row: the step is not stored yet.
-- Needs no lease: a stale worker reads the right result, and is refused when it writes.
create or replace function faultline.recall(job_id uuid, name text) returns table (fencing_token bigint, result jsonb)
language sql stable security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan
as $$
  select s.fencing_token, s.result
  from faultline.steps s
  where s.job_id = recall.job_id and s.name = recall.name;
$$;
