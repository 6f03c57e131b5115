-- Have the jobs that wait for a budget since before it was raised ask again at once; with `jobs`, only these.
-- Before: the caller has locked the budget.
-- Waits for no lock: a submission that was answered with a unique job holds that job's lock until its transaction ends, which may
-- take long. Jobs that are locked are noted, and `reconcile` wakes them later.
create or replace function faultline.wake_budget_waiters(budget text, jobs uuid[] default null) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  at constant timestamptz := faultline.clock();
  raised constant timestamptz := (select b.raised_at from faultline.budgets b where b.name = wake_budget_waiters.budget);
  path constant text[] := array['waits', wake_budget_waiters.budget];
  woken uuid[];
begin
  with waiting as materialized (
    select j.ctid from faultline.open_jobs j
    where (wake_budget_waiters.jobs is null or j.id = any (wake_budget_waiters.jobs))
      and j.state = 'queued' and j.next_run_at > at and j.in_group is null
      and (j.takes #> path ->> 'asked_at')::timestamptz <= raised
    for update skip locked
  ),
  woken as (
    update faultline.open_jobs j
    set next_run_at = at, suspended = null, takes = j.takes #- path
    from waiting w
    where j.ctid = w.ctid
    returning j.id
  )
  select array_agg(w.id) into woken from woken w;
  perform faultline.wake_for(woken);
  update faultline.budgets b
  set asleep = (
    select array_agg(j.id) from faultline.open_jobs j
    where (wake_budget_waiters.jobs is null or j.id = any (wake_budget_waiters.jobs))
      and j.state = 'queued' and j.next_run_at > at and j.in_group is null
      and (j.takes #> path ->> 'asked_at')::timestamptz <= raised
  )
  where b.name = wake_budget_waiters.budget;
end
$$;
