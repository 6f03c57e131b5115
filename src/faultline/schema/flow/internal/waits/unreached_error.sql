-- The error of a job that was cancelled because a job that it comes after has ended badly. A retry of that job queues it
-- again.
create or replace function faultline.unreached_error() returns text
language sql immutable parallel safe
return 'cancelled: a job that it comes after has failed or was cancelled';
