-- Whether people cannot read or type a name as it is: characters that control a terminal, or hide or reorder text. With
-- `trimmed`, also white space at either end, whatever the locale. The planner unfolds it.
-- Python has the same class: see core/checks.py.
create or replace function faultline.is_unreadable(name text, trimmed boolean default false) returns boolean
language sql immutable
as $$
  select case when is_unreadable.trimmed
    then name ~ '^[[:space:]\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]|[\u0001-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]|[[:space:]\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]$'
    else name ~ '[\u0001-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]'
  end
$$;
