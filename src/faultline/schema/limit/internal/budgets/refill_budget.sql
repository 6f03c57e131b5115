-- A budget as it is at this moment, for a job that takes from it: refilled, and kept for no job that will not come.
create or replace function faultline.refill_budget(
  bucket faultline.budgets, job_id uuid, at timestamptz
) returns faultline.budgets
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  bucket.tokens := faultline.refilled(
    bucket.tokens, bucket.refilled_at, faultline.rate_of(bucket.effective), (bucket.effective ->> 'burst')::double precision, at
  );
  if bucket.refilled_at > at + interval '1 second' then
    -- A clock was ahead: no job waits for the moments that it gave.
    bucket.reserved_until := at;
    bucket.next_job := null;
  end if;
  bucket.refilled_at := faultline.refill_moment(bucket.refilled_at, at);
  if bucket.next_until <= at or bucket.next_job <> refill_budget.job_id and not exists (
    select from (select j.state from faultline.open_jobs j where j.id = bucket.next_job offset 0) j
    where j.state in ('queued', 'running')
  ) then
    -- It did not come in time, or has ended: others do not wait for it any longer.
    bucket.next_job := null;
  end if;
  return bucket;
end
$$;
