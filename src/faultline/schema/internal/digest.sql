-- The digest by which two submissions are the same: of the task and its arguments, or of the caller's own text. Arguments are
-- compared by value: the order of keys, spaces and the notation of numbers make no difference.
create or replace function faultline.digest(task text, args json, given text default null) returns bytea
language sql immutable parallel safe
return sha256(convert_to(coalesce(given, task || e'\n' || args::jsonb::text), 'UTF8'));
