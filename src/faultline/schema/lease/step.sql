-- Store the result of a step of a job. Returns a refusal if the lease is lost, otherwise no row.
-- Before: the caller holds the lease. After: the step is stored, once per job, with the token that wrote it.
-- A stored step is not overwritten: call `recall` before you do the work.
create or replace function faultline.step(
  job_id uuid,
  fencing_token bigint,
  owner text,
  name text,
  result jsonb default null
) returns setof faultline.refusal
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan
as $$
#variable_conflict use_column
begin
  perform faultline.check_name('the name of a step', step.name, 200, trimmed => false);
  perform faultline.require_synchronous_commit();
  if faultline.lock_lease(step.job_id, step.fencing_token, step.owner) then
    perform faultline.set_current_verb('step');
    insert into faultline.steps (job_id, name, fencing_token, recorded_at, result)
    values (step.job_id, step.name, step.fencing_token, faultline.clock(), step.result)
    on conflict (job_id, name) do nothing;
    perform faultline.set_current_verb('');
  else
    return query
      select * from faultline.refuse('step', array[step.job_id], array[step.fencing_token], array[step.owner], '{}');
  end if;
end
$$;
