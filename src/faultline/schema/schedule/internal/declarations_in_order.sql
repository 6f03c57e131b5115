-- Declarations of schedules, in the order in which they can be written: one that leaves its name comes before the one that takes it.
-- `names` are those that they declare.
create or replace function faultline.declarations_in_order(declarations json, names text[]) returns table (
  name text,
  digest text,
  was text,
  spec json
)
language plpgsql stable
as $$
#variable_conflict use_column
begin
  return query
    with recursive declared as (
      select d ->> 'name' as name, d ->> 'digest' as digest, (faultline.names_before(d))[1] as was, d -> 'spec' as spec
      from json_array_elements(declarations_in_order.declarations) d
    ),
    -- Who leaves a name to whom: as this code says, or, in a rollback, as the newer code has said.
    leaves as (
      select d.name as leaver, d.was as heir from declared d where d.was = any (names)
      union
      select s.was, s.name
      from faultline.schedules s
      join declared d on d.name = s.name and d.was is distinct from s.was
      where s.was = any (names)
    ),
    turns as (
      select d.name, 0 as turn from declared d
      union
      select l.heir, t.turn + 1
      from turns t
      join leaves l on l.leaver = t.name
      -- Two that swap their names have no first.
      where t.turn < cardinality(names)
    )
    select d.name, d.digest, d.was, d.spec
    from declared d
    -- A name that another had before is free once that one has its new name.
    order by (select max(t.turn) from turns t where t.name = d.name), coalesce(d.was, d.name), d.name;
end
$$;
