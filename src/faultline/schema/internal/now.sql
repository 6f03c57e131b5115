-- What time it is for questions about the present. The server's clock, and nothing a session can set. Within one statement it
-- stands still, also where the statement is a loop of PL/pgSQL: verbs that decide by time ask `clock()`, once.
-- Inlined by the planner, so that `next_run_at <= faultline.now()` is an index condition.
create or replace function faultline.now() returns timestamptz
language sql stable parallel safe
return statement_timestamp();
