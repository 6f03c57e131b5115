-- The key of the advisory lock that a worker holds in its own session for as long as it lives.
create or replace function faultline.worker_lock(worker_id text) returns bigint
language sql immutable parallel safe
return hashtextextended('faultline worker ' || worker_id, 0);
