-- Whether nothing is set for a budget, and no worker that is alive has it in its code. While there is no worker, or one that has
-- just started and not said what it has, its code may have it.
create or replace function faultline.orphaned_budget(budget text) returns boolean
language sql volatile
as $$
  select exists (select from faultline.budgets b where b.name = orphaned_budget.budget and b.override = '{}')
    and coalesce((
      select bool_and(coalesce(orphaned_budget.budget <> all (w.budgets), false))
      from faultline.workers w
      where w.heartbeat_at > faultline.clock() - interval '15 seconds'
    ), false);
$$;
