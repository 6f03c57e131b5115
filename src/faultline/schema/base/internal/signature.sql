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
