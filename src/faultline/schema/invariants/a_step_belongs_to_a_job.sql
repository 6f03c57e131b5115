-- Every step belongs to a job that exists.
select s.job_id, s.name
from faultline.steps s
where not exists (select from faultline.open_jobs j where j.id = s.job_id)
  and not exists (select from faultline.ledger f where f.job_id = s.job_id);
