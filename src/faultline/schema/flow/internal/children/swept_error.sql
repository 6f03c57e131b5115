-- The error of a job that was cancelled because its parent has ended badly. A retry of the parent queues it again.
create or replace function faultline.swept_error() returns text
language sql immutable parallel safe
return 'cancelled: its parent has ended';
