-- No step is left behind by a job that is gone.
select s.job_id, s.name
from faultline.steps s
where not exists (select from faultline.open_jobs j where j.id = s.job_id)
  and not exists (select from faultline.ledger f where f.job_id = s.job_id);
