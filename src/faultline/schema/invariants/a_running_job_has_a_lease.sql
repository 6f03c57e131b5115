-- A running job has an owner, an expiry, a token and an attempt. Any other job has no owner.
select j.id as job_id, j.state, j.lease_owner, j.lease_expires_at, j.fencing_token, j.attempt
from faultline.open_jobs j
where (j.state = 'running') <> (j.lease_owner is not null)
  or (j.state = 'running') <> (j.lease_expires_at is not null)
  or (j.state = 'running' and (j.fencing_token < 1 or j.attempt < 1));
