-- No open job has lost its idempotency key: the same key would enqueue a second job.
select j.id as job_id, j.idempotency_key as key
from faultline.open_jobs j
where j.idempotency_key is not null
  and not exists (select from faultline.keys k where k.key = j.idempotency_key and k.job_id = j.id);
