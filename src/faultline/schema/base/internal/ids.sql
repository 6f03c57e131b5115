-- The order of ids, and digests of what jobs were given.

-- Whether an id is a UUID of version 7, which begins with its time. Random ones would lie all over the ranges by which tables of
-- jobs may be partitioned.
create or replace function faultline.is_time_ordered(id uuid) returns boolean
language sql immutable parallel safe
return get_byte(uuid_send(id), 6) >> 4 = 7;

-- Two submissions are the same if their digests are: of the task and its arguments, or of the caller's own text.
-- Arguments are compared as jsonb: key order, spaces and the notation of numbers do not matter.
create or replace function faultline.digest(task text, args json, given text default null) returns bytea
language sql immutable parallel safe
return sha256(convert_to(coalesce(given, task || e'\n' || args::jsonb::text), 'UTF8'));
