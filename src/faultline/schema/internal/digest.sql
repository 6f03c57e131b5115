-- What makes two submissions the same: the task and its arguments, or what the caller has given instead. Arguments are compared by
-- what they mean: the order of keys, spaces and the way in which a number is written make no difference.
create or replace function faultline.digest(task text, args json, given text default null) returns bytea
language sql immutable parallel safe
return sha256(convert_to(coalesce(given, task || e'\n' || args::jsonb::text), 'UTF8'));
