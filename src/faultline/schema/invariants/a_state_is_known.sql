-- Every open job is in a known state, within its attempts, and finished exactly when it has ended.
select j.id as job_id, j.state, j.attempt, j.max_attempts, j.finished_at
from faultline.open_jobs j
where j.state not in ('queued', 'running', 'failed', 'cancelled')
  or j.attempt not between 0 and j.max_attempts
  or (j.finished_at is not null) <> (j.state in ('failed', 'cancelled'));
