-- How many connections a worker may have open at once. Null: it has not said, as workers of older builds.
alter table faultline.workers add column connections_max integer;
