-- Two submissions are the same if their digests are: of the task and its arguments, or of the caller's own text.
-- Arguments are compared as jsonb: key order, spaces and the notation of numbers do not matter.
create or replace function faultline.digest(task text, args json, given text default null) returns bytea
language sql immutable parallel safe
return sha256(convert_to(coalesce(given, task || e'\n' || args::jsonb::text), 'UTF8'));
