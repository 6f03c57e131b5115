-- What one group may do: its own fields, and those of each group where it has none.
create or replace function faultline.group_limit(queue text, group_key text) returns jsonb
language sql stable
return coalesce((select l.effective from faultline.limits l where l.queue = $1 and l.group_key = '*'), '{}')
  || coalesce((select l.effective from faultline.limits l where l.queue = $1 and l.group_key = $2), '{}');
