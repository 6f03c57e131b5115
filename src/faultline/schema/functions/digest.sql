-- What makes two submissions the same: the task and its arguments.
create or replace function faultline.digest(task text, args json) returns bytea
language sql immutable parallel safe
return sha256(convert_to(task || e'\n' || args::text, 'UTF8'));
