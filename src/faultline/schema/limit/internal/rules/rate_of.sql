-- How many jobs a limit lets start per second. Null: any number.
create or replace function faultline.rate_of(fields jsonb) returns double precision
language sql immutable parallel safe
return (fields ->> 'rate')::double precision / (fields ->> 'per')::double precision;
