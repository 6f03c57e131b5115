-- No record carries a greater token than its job does now: not an accepted step, not a failure, not a reaped lease.
-- What a stale writer claimed to hold does not count; what the database granted does. A job that no worker holds will be granted
-- a token above the floor: one that was pruned and enqueued again begins at zero.
select known.id as job_id, known.fencing_token, seen.fencing_token as seen_token, seen.place
from (
  select j.id, case j.state when 'running' then j.fencing_token else greatest(j.fencing_token, s.token_floor) end
    as fencing_token
  from faultline.open_jobs j
  cross join faultline.settings s
  union all
  select f.job_id, f.fencing_token from faultline.ledger f
) known
join (
  select s.job_id, s.fencing_token, 'steps' as place from faultline.steps s
  union all
  select n.job_id, n.fencing_token, 'journal' from faultline.journal n where n.event <> 'stale_write_blocked'
) seen on seen.job_id = known.id
where seen.fencing_token > known.fencing_token;
