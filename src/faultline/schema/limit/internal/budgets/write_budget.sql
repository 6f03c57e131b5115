-- Store one budget: what is declared, or what a person has set; the other is null, and stays. Both empty: a person removes it.
-- What is in it stays, up to the new burst. If more may be taken than before, the jobs that wait ask again at once: by the
-- moments that the old rate gave them they would wait for too long. Jobs that were told to wait and still run are due at once
-- when they give their lease back: see budget_raised_since_asked. Returns whether anything changed; if so, the journal says what.
create or replace function faultline.write_budget(budget text, declared jsonb, override jsonb, signed jsonb) returns boolean
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  at timestamptz;
  was faultline.budgets;
  by_code jsonb;
  by_people jsonb;
  wanted jsonb;
begin
  if coalesce(write_budget.declared, write_budget.override) <> '{}' then
    insert into faultline.budgets (name) values (write_budget.budget) on conflict do nothing;
  end if;
  select b.* into was from faultline.budgets b where b.name = write_budget.budget for update;
  by_code := coalesce(write_budget.declared, was.declared);
  by_people := coalesce(write_budget.override, was.override);
  if was.name is null or (was.declared, was.override) = (by_code, by_people) then
    return false;
  end if;
  wanted := by_code || by_people;
  at := faultline.clock();
  if wanted = '{}' then
    delete from faultline.budgets b where b.name = write_budget.budget;
  else
    update faultline.budgets b
    set declared = by_code,
        override = by_people,
        effective = wanted,
        tokens = faultline.refilled(
          b.tokens, b.refilled_at, faultline.rate_of(b.effective), (b.effective ->> 'burst')::double precision, at
        ),
        refilled_at = faultline.refill_moment(b.refilled_at, at)
    where b.name = write_budget.budget;
    -- Who set what wins over the code stays on record, whatever is deployed later.
    update faultline.budgets b
    set changed_at = at, changed_by = signed ->> 'by', reason = signed ->> 'reason'
    where b.name = write_budget.budget and (was.override <> by_people or was.override = '{}');
  end if;
  insert into faultline.journal (at, event, detail)
  values (
    at, 'limit_changed',
    jsonb_build_object(
      'budget', write_budget.budget, 'was', was.effective, 'is', wanted, 'by_code', write_budget.override is null
    ) || signed
  );
  if faultline.rate_of(wanted) > faultline.rate_of(was.effective)
    or (wanted ->> 'burst')::double precision > (was.effective ->> 'burst')::double precision
  then
    update faultline.budgets b set reserved_until = at, next_job = null, raised_at = at where b.name = write_budget.budget;
    perform faultline.wake_budget_waiters(write_budget.budget);
  end if;
  return true;
end
$$;
