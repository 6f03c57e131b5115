-- Decide about the due ticks of several schedules in one transaction, each as `tick` does. `decisions` is
-- [{"name", "revision", "expected", "fire", "missed", "next_at"}, …], up to 50: each has a subtransaction, and a server is
-- slower for everyone where a transaction has more than 64.
-- Returns what became of each tick that fires. A schedule that cannot be decided about is undone alone, and has one row with
-- the `error`; one whose jobs are locked has none, and is decided about when it is looked at again.
create or replace function faultline.tick_many(decisions json) returns table (
  name text,
  at timestamptz,
  outcome text,
  job_id uuid,
  error text
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  one record;
begin
  if json_array_length(tick_many.decisions) > 50 then
    raise exception '% schedules are too many for one transaction', json_array_length(tick_many.decisions)
      using errcode = 'FL005', hint = 'pass up to 50';
  end if;
  for one in
    select d.*
    from json_to_recordset(tick_many.decisions) as d (
      name text, revision bigint, expected timestamptz, fire timestamptz[], missed jsonb, next_at timestamptz
    )
  loop
    begin
      return query
        select one.name, t.at, t.outcome, t.job_id, null::text
        from faultline.tick(one.name, one.revision, one.expected, one.fire, one.missed, one.next_at) t;
    exception
      when lock_not_available then
        null;
      when others then
        -- What is about the moment or the caller would meet all the others, too.
        if sqlstate ~ '^(08|25|40|53|57|58|XX)' or sqlstate = '42501' then
          raise;
        end if;
        return query select one.name, null::timestamptz, null::text, null::uuid, sqlerrm;
    end;
  end loop;
end
$$;
