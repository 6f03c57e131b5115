-- What became of the jobs that a job of a graph came after, in their order: name, task, state, result and error. No rows: it came
-- after none. Raises FL001 if the lease is lost.
-- Before: the caller holds the lease. It is history from then on: a later attempt reads the same states.
create or replace function faultline.upstream(job_id uuid, fencing_token bigint, owner text) returns table (
  name text,
  upstream_id uuid,
  task text,
  state text,
  result jsonb,
  error text
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan
set max_parallel_workers_per_gather = 0
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
  call faultline.calls;
  taken record;
begin
  select c.* into call from faultline.calls c where c.job_id = upstream.job_id and c.number = '0' and c.kind = 'after';
  if call.id is null then
    return;
  end if;
  select t.* into taken from faultline.collect_outcomes(upstream.job_id, upstream.fencing_token, upstream.owner, '0') t;
  if taken.status = 'stale' then
    raise exception 'stale lease: job % token % (%)', upstream.job_id, upstream.fencing_token, taken.reason
      using errcode = 'FL001', detail = json_build_object(
        'job_id', upstream.job_id, 'stale_token', upstream.fencing_token, 'current_token', taken.current_token,
        'reason', taken.reason
      )::text;
  end if;
  if taken.result ? 'upstream' then
    -- Of a fork: it was copied, since the jobs themselves may have been pruned.
    return query
      select u.name, u.upstream_id, u.task, u.state, u.result, u.error
      from jsonb_to_recordset(taken.result -> 'upstream') as u (
        name text, upstream_id uuid, task text, state text, result jsonb, error text
      );
    return;
  end if;
  return query select * from faultline.came_after(call.id, taken.result -> 'failed');
end
$$;
