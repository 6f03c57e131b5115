-- Whether a budget was raised since the present run of a job was told how long to wait for it. Before: the caller holds the
-- job's row, and is about to give its lease back. Then it is due at once: who raises a budget wakes the jobs that wait by then,
-- and finds no job that is still running.
-- Locks the budgets that it waits for: who raises one now does so after the caller's commit, and finds the job.
create or replace function faultline.budget_raised_since_asked(job_id uuid) returns boolean
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  one record;
begin
  for one in
    select b.raised_at, (w.value ->> 'asked_at')::timestamptz as asked_at
    from (
      select w.key, w.value
      from faultline.open_jobs j
      cross join lateral jsonb_each(coalesce(j.takes -> 'waits', '{}')) w
      where j.id = budget_raised_since_asked.job_id and (w.value ->> 'token')::bigint = j.fencing_token
      offset 0
    ) w
    join faultline.budgets b on b.name = w.key
    order by b.name
    for share of b
  loop
    if one.raised_at >= one.asked_at then
      return true;
    end if;
  end loop;
  return false;
end
$$;
