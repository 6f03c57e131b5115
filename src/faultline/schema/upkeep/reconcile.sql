-- Delete open rows of jobs that are in the ledger, as after a restore or hand-written SQL. Returns the ids of these jobs.
-- The ledger is right: a job in it must not run again. The floor is raised to the token of a deleted row, which may be
-- greater than the ledger's.
-- Also nudges suspended jobs that could go on and that nobody has nudged, those that waited for these jobs among them, and
-- cancels those that wait for each other. Last come jobs that were locked when the budget that they wait for was raised.
create or replace function faultline.reconcile(max_jobs integer default 1000) returns setof uuid
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan
as $$
#variable_conflict use_column
declare
  ids uuid[];
begin
  perform faultline.check_most('max_jobs', reconcile.max_jobs);
  perform faultline.require_synchronous_commit();
  perform faultline.set_current_verb('reconcile');
  with doubled as materialized (
    select j.id
    from faultline.open_jobs j
    where exists (select from faultline.ledger f where f.job_id = j.id)
    order by j.id
    limit reconcile.max_jobs
    for update skip locked
  ),
  closed as (
    delete from faultline.open_jobs j
    using doubled
    where j.id = doubled.id
    returning j.id, j.state, j.fencing_token, j.lease_owner
  ),
  recorded as (
    insert into faultline.journal (at, job_id, event, fencing_token, owner, detail)
    select faultline.clock(), c.id, 'reconciled', c.fencing_token, c.lease_owner, jsonb_build_object('was', c.state)
    from closed c
    order by c.id
  ),
  remembered as (
    update faultline.settings s
    set token_floor = highest.token
    from (select max(c.fencing_token) as token from closed c) highest
    where s.token_floor < highest.token
  )
  select array_agg(c.id) into ids from closed c;
  perform faultline.set_current_verb('');
  perform faultline.wake_overdue_suspended(reconcile.max_jobs);
  perform faultline.cancel_deadlocked_jobs();
  if current_setting('transaction_isolation') = 'read committed' then
    perform faultline.recount();
    -- Last: jobs that take something wait for the lock.
    perform faultline.wake_budget_waiters(b.name, b.asleep)
    from (
      select b.name, b.asleep from faultline.budgets b where b.asleep is not null order by b.name for update skip locked
    ) b;
  end if;
  return query select u.id from unnest(ids) as u (id);
end
$$;
