-- Every job of a flow names a flow that exists, and every flow has its first job. `prune` deletes that one last.
select j.id as job_id, j.flow_id
from faultline.open_jobs j
where j.flow_id is not null and not exists (select from faultline.flows f where f.id = j.flow_id)
union all
select l.job_id, l.flow_id
from faultline.ledger l
where l.flow_id is not null and not exists (select from faultline.flows f where f.id = l.flow_id)
union all
select null, f.id
from faultline.flows f
where not exists (select from faultline.open_jobs j where j.id = f.id)
  and not exists (select from faultline.ledger l where l.job_id = f.id);
