-- Whether a worker must call `record_start` before it runs this attempt: it is the last one, or the job was reaped before.
-- Other attempts save this write.
create or replace function faultline.needs_start_record(attempt integer, max_attempts integer, reaps integer) returns boolean
language sql immutable parallel safe
return attempt >= max_attempts or reaps > 0;
