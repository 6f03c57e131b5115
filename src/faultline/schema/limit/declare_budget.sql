-- Declare a budget that running jobs take from, as the code says it: {"rate": 90000, "per": 60, "burst": 20000}. Every worker
-- calls this when it starts: it writes only what differs, and returns whether anything did. What people have set
-- (`set_budget`) stays, and wins.
create or replace function faultline.declare_budget(budget text, declared jsonb) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  wanted constant jsonb := faultline.checked_budget(declare_budget.budget, declare_budget.declared);
begin
  perform faultline.read_committed('declare_budget');
  -- Without a lock: a worker that starts with the same code as ever delays no job that takes.
  if exists (select from faultline.budgets b where b.name = declare_budget.budget and b.declared = wanted) then
    return false;
  end if;
  perform faultline.require_synchronous_commit();
  return faultline.write_budget(declare_budget.budget, wanted, null, faultline.signature());
end
$$;
