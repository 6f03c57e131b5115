-- Whether a job of this call has failed or was cancelled.
create or replace function faultline.has_failed(call_id bigint) returns boolean
language plpgsql volatile
set plan_cache_mode = force_generic_plan
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
begin
  return exists (
    select
    from faultline.edges e
    -- By id only, as in `open_child`.
    cross join lateral (select j.state from faultline.open_jobs j where j.id = e.job_id offset 0) o
    where e.call_id = has_failed.call_id and o.state in ('failed', 'cancelled')
  );
end
$$;
