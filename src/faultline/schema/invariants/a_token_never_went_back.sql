-- No record carries a greater token than its job does now: not an accepted step, not a failure, not a reaped lease.
-- What a stale writer claimed to hold does not count; what the database granted does.
select known.id as job_id, known.fencing_token, seen.fencing_token as seen_token, seen.place
from (
  select j.id, j.fencing_token from faultline.open_jobs j
  union all
  select f.job_id, f.fencing_token from faultline.ledger f
) known
join (
  select s.job_id, s.fencing_token, 'steps' as place from faultline.steps s
  union all
  select n.job_id, n.fencing_token, 'journal' from faultline.journal n where n.event <> 'stale_write_blocked'
) seen on seen.job_id = known.id
where seen.fencing_token > known.fencing_token;
