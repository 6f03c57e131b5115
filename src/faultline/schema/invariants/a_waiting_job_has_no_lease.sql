-- A suspended job is queued, in a flow, and awaits a call.
select j.id as job_id, j.state, j.lease_owner, j.flow_id
from faultline.open_jobs j
where j.suspended
  and (
    j.state <> 'queued'
    or j.lease_owner is not null
    or j.flow_id is null
    or not exists (select from faultline.calls c where c.job_id = j.id and c.awaited and c.ended_at is null)
  );
