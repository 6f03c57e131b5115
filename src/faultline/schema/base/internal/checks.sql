-- Checks that several subjects share.

-- Raise FL005 unless a name has 1 to `length_max` characters, and people can read and type it. `what` says whose it is.
-- With `known`, only its length counts: what was named before there was this rule can still be resumed and removed.
create or replace function faultline.check_name(
  what text, name text, length_max integer, trimmed boolean default true, known boolean default false
) returns void
language plpgsql stable
as $$
begin
  if coalesce(length(check_name.name), 0) not between 1 and check_name.length_max then
    raise exception '% must have 1 to % characters', check_name.what, check_name.length_max using errcode = 'FL005';
  end if;
  if not check_name.known and faultline.is_unreadable(check_name.name, check_name.trimmed) then
    raise exception '% must not contain control characters%',
      check_name.what, case when check_name.trimmed then ', or begin or end with white space' else '' end
      using errcode = 'FL005', hint = 'this includes characters that change the direction of text (bidi)';
  end if;
end
$$;

-- Raise FL005 if a call may look at less than nothing. `what` is the name of the parameter. Null is no limit.
create or replace function faultline.check_most(what text, most integer) returns void
language plpgsql immutable
as $$
begin
  if most < 0 then
    raise exception '% must be a whole number from 0, not %', check_most.what, most
      using errcode = 'FL005', detail = 'Nothing was changed.';
  end if;
end
$$;

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

-- Who operates on jobs, queues or keys, and why, as the journal stores it. The caller chooses `by` (default: the
-- login); the database adds `login`, which the caller cannot change.
-- Raises FL005 for texts that are too long, and for characters that could hide or reorder what a screen shows.
create or replace function faultline.signature(by text default null, reason text default null) returns jsonb
language plpgsql stable
as $$
begin
  if length(signature.by) not between 1 and 200 then
    raise exception 'by has % characters; it must have 1 to 200', length(signature.by) using errcode = 'FL005';
  end if;
  if faultline.is_unreadable(signature.by) then
    raise exception 'by has control characters; use plain text' using errcode = 'FL005';
  end if;
  if length(signature.reason) > 1000 then
    raise exception 'the reason has % characters; at most 1000 are allowed', length(signature.reason) using errcode = 'FL005';
  end if;
  -- Unlike `by`, a reason may have tabs and several lines.
  if signature.reason ~ '[\u0001-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]' then
    raise exception 'the reason has control characters; use plain text' using errcode = 'FL005';
  end if;
  return jsonb_build_object(
    'by', coalesce(signature.by, session_user::text), 'login', session_user::text, 'reason', signature.reason
  );
end
$$;
