-- No step or journal entry has a greater token than its job. Entries about refused writes do not count: a stale worker
-- may send any token. If the job is not running, tokens up to the floor do not count either: its next token is above
-- the floor, and a job that was pruned and enqueued again begins at zero.
with seen as materialized (
  select s.job_id, s.fencing_token, 'steps' as seen_in from faultline.steps s
  union all
  select n.job_id, n.fencing_token, 'journal' from faultline.journal n where n.event <> 'stale_write_blocked'
)
select j.id as job_id, j.fencing_token, seen.fencing_token as seen_token, seen.seen_in
from seen
join faultline.open_jobs j on j.id = seen.job_id
where seen.fencing_token > j.fencing_token
  and (j.state = 'running' or seen.fencing_token > (select s.token_floor from faultline.settings s))
union all
select f.job_id, f.fencing_token, seen.fencing_token, seen.seen_in
from seen
join faultline.ledger f on f.job_id = seen.job_id
-- Most tokens are 1, the lowest in the ledger: skip them.
where seen.fencing_token > 1 and seen.fencing_token > f.fencing_token;
