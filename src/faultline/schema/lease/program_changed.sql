-- Say that the program of a job does not fit its history, because the code of its task has changed. Returns for how many
-- seconds the job should wait before it is tried again; null: the lease is lost.
-- Before: the caller holds the lease. After: it still does. The journal has one entry for each job and `code`, a digest of
-- the code that did not fit.
-- The pause is as long as this code is known not to fit, so it doubles from try to try, from 5 s to 10 min. With other code
-- it begins anew.
create or replace function faultline.program_changed(
  job_id uuid,
  fencing_token bigint,
  owner text,
  code text,
  error text
) returns float8
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan
as $$
#variable_conflict use_column
declare
  at constant timestamptz := faultline.clock();
  since timestamptz;
begin
  perform faultline.require_synchronous_commit();
  if not faultline.lock_lease(program_changed.job_id, program_changed.fencing_token, program_changed.owner) then
    return null;
  end if;
  select e.at
  into since
  from faultline.journal e
  where e.job_id = program_changed.job_id
    and e.event = 'program_changed'
    and e.detail ->> 'code' = program_changed.code
  order by e.id
  limit 1;
  if since is null then
    insert into faultline.journal (at, job_id, event, fencing_token, owner, detail)
    values (
      at, program_changed.job_id, 'program_changed', program_changed.fencing_token, program_changed.owner,
      jsonb_build_object('code', program_changed.code, 'error', left(program_changed.error, 2000))
    );
  end if;
  return least(600, greatest(5, extract(epoch from at - since)::float8));
end
$$;
