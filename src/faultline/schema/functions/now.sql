-- What time it is for due times and new leases. The server's clock, and nothing a session can set.
-- Inlined by the planner, so that `next_run_at <= faultline.now()` is an index condition.
create or replace function faultline.now() returns timestamptz
language sql stable parallel safe
return statement_timestamp();
