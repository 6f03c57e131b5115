-- How many jobs may run at once under a limit. Null: any number. A group that keeps its order runs one.
create or replace function faultline.cap_of(fields jsonb) returns integer
language sql immutable parallel safe
return case when (fields ->> 'ordered')::boolean then 1 else (fields ->> 'concurrency')::integer end;
