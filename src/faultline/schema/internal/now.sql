-- The time of the current statement, by the server's clock; no session can change it. It does not advance within one
-- statement, nor in a loop of PL/pgSQL: verbs that decide by time use `clock()`, once.
-- Inlined by the planner, so that `next_run_at <= faultline.now()` is an index condition.
create or replace function faultline.now() returns timestamptz
language sql stable parallel safe
return statement_timestamp();
