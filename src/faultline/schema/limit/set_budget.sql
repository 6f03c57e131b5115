-- Set what jobs may take from a budget, over what the code declares: {"rate": 90000, "per": 60, "burst": 20000}. It holds at
-- once, and until it is reset: null as `fields`. One that no code declares is made by this, and gone when it is reset. So is
-- one for which nothing is set any more, and which is no longer in the code of any worker: see orphaned_budget.
-- A rate without `per` or `burst` keeps those in force: see keep_rate.
-- Returns whether anything changed. The journal records who did it and why: see signature.
create or replace function faultline.set_budget(
  budget text, fields jsonb, by text default null, reason text default null
) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  signed constant jsonb := faultline.signature(set_budget.by, set_budget.reason);
  wanted constant jsonb := case when set_budget.fields is null then '{}'
    else faultline.checked_budget(set_budget.budget, faultline.keep_rate(set_budget.fields, (
      select b.effective from faultline.budgets b where b.name = set_budget.budget
    ))) end;
begin
  perform faultline.check_name('the name of a budget', set_budget.budget, 100, known => true);
  perform faultline.read_committed('set_budget');
  perform faultline.require_synchronous_commit();
  if set_budget.fields is null and faultline.orphaned_budget(set_budget.budget) then
    return faultline.write_budget(set_budget.budget, '{}', '{}', signed);
  end if;
  return faultline.write_budget(set_budget.budget, null, wanted, signed);
end
$$;
