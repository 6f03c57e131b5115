-- Whether a queued job has expired and will never run, although it was not cancelled yet: see expire.
create or replace function faultline.has_expired(
  state text, fencing_token bigint, expires_at timestamptz, at timestamptz
) returns boolean
language sql immutable parallel safe
return coalesce(state = 'queued' and fencing_token = 0 and expires_at <= at, false);
