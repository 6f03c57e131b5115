-- The bounds, in seconds, between which waits and runs are counted. Workers and pages must agree on them.
create or replace function faultline.buckets() returns double precision[]
language sql immutable
as $$
  select array[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 10800
  ]::double precision[];
$$;
