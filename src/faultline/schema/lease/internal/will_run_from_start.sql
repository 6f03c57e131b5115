-- Whether a queued job will run from its beginning, and so see all that is committed before: it has not begun, or remembers nothing
-- of what it has done. One that has expired will not run at all.
create or replace function faultline.will_run_from_start(
  job_id uuid, fencing_token bigint, flow_id uuid, expires_at timestamptz, at timestamptz
) returns boolean
language sql stable
as $$
  select case
    when $2 = 0 then $4 is null or $4 > $5
    else $3 is null and not exists (select from faultline.steps s where s.job_id = $1)
  end
$$;
