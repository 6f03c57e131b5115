-- Store the progress of a running job. Returns a refusal if the lease is lost, otherwise no row.
-- Before: the caller holds the lease. After: `progress` is replaced.
create or replace function faultline.progress(
  job_id uuid,
  fencing_token bigint,
  owner text,
  progress jsonb
) returns setof faultline.refusal
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan
as $$
#variable_conflict use_column
begin
  if octet_length(progress.progress::text) > 65536 then
    raise exception 'progress of job % is larger than 65536 bytes', progress.job_id
      using errcode = 'FL005', hint = 'store large values elsewhere and put a reference here';
  end if;
  if faultline.lock_lease(progress.job_id, progress.fencing_token, progress.owner) then
    update faultline.open_jobs j set progress = progress.progress where j.id = progress.job_id;
  else
    return query
      select * from faultline.refuse(
        'progress', array[progress.job_id], array[progress.fencing_token], array[progress.owner], '{}'
      );
  end if;
end
$$;
