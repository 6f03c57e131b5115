-- Whether a budget was raised since the present run of a job was told how long to wait for it. Before: the caller holds the
-- job's row, and is about to give its lease back. Then the job is due at once: raising a budget wakes the jobs that wait by then,
-- and this one was still running.
-- Locks the budgets that it waits for: a raise comes after the caller's commit then, and finds the job.
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
