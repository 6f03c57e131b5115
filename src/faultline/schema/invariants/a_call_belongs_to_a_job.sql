-- Every call belongs to a job that exists, and that is in a flow.
select c.job_id, c.number, c.kind, c.name
from faultline.calls c
where not exists (select from faultline.open_jobs j where j.id = c.job_id and j.flow_id is not null)
  and not exists (select from faultline.ledger f where f.job_id = c.job_id and f.flow_id is not null);
