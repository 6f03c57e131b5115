-- The time that every verb uses.

-- The current time. Use it after waiting for a lock: `now()` is the time when the wait began, so that a lease which
-- expired meanwhile would look valid.
create or replace function faultline.clock() returns timestamptz
language sql volatile parallel safe
return clock_timestamp();

-- The time when the current statement began, by the server's clock. It does not advance during the statement, not even
-- in a loop of PL/pgSQL: verbs that decide by time read `clock()` once instead.
-- The planner inlines it, so that `next_run_at <= faultline.now()` is an index condition.
create or replace function faultline.now() returns timestamptz
language sql stable parallel safe
return statement_timestamp();
