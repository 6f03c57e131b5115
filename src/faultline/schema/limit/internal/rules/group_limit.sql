-- What one group may do: its own fields, and those of each group where it has none. PL/pgSQL, so that no plan of an empty table
-- is kept: PostgreSQL 18 keeps those of functions in SQL.
create or replace function faultline.group_limit(queue text, group_key text) returns jsonb
language plpgsql stable parallel safe
set enable_seqscan = off
set enable_bitmapscan = off
as $$
begin
  return coalesce((
    select l.effective from faultline.limits l where l.queue = group_limit.queue and l.group_key = '*'
  ), '{}') || coalesce((
    select l.effective from faultline.limits l where l.queue = group_limit.queue and l.group_key = group_limit.group_key
  ), '{}');
end
$$;
