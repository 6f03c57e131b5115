-- No record carries a greater token than its job does now: not an accepted step, not a failure, not a reaped lease.
-- What a stale writer claimed to hold does not count; what the database granted does. A job that no worker holds will be granted
-- a token above the floor: one that was pruned and enqueued again begins at zero.
with seen as materialized (
  select s.job_id, s.fencing_token, 'steps' as place from faultline.steps s
  union all
  select n.job_id, n.fencing_token, 'journal' from faultline.journal n where n.event <> 'stale_write_blocked'
)
select j.id as job_id, j.fencing_token, seen.fencing_token as seen_token, seen.place
from seen
join faultline.open_jobs j on j.id = seen.job_id
where seen.fencing_token > j.fencing_token
  and (j.state = 'running' or seen.fencing_token > (select s.token_floor from faultline.settings s))
union all
select f.job_id, f.fencing_token, seen.fencing_token, seen.place
from seen
join faultline.ledger f on f.job_id = seen.job_id
-- No ledger row has a lower token than 1, which is also what most records carry: they need not be compared.
where seen.fencing_token > 1 and seen.fencing_token > f.fencing_token;
