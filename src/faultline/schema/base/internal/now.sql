-- The time when the current statement began, by the server's clock. It does not advance during the statement, not even
-- in a loop of PL/pgSQL: verbs that decide by time read `clock()` once instead.
-- The planner inlines it, so that `next_run_at <= faultline.now()` is an index condition.
create or replace function faultline.now() returns timestamptz
language sql stable parallel safe
return statement_timestamp();
