-- Which tasks a worker knows. Null: it has not said, as workers of older builds.
alter table faultline.workers add column tasks text[];
