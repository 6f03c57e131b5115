-- The weight of a group: one of weight 2 gets twice as much as one of weight 1.
create or replace function faultline.weight_of(fields jsonb) returns double precision
language sql immutable parallel safe
return coalesce((fields ->> 'weight')::double precision, 1);
