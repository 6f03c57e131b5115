-- Every edge is of a call that exists. The job of a child exists as long as its flow does; a job that is only waited for
-- may have been pruned.
select e.call_id, e.index, e.job_id
from faultline.edges e
left join faultline.calls c on c.id = e.call_id
where c.id is null
  or c.kind = 'children' and c.ended_at is null
    and not exists (select from faultline.open_jobs j where j.id = e.job_id)
    and not exists (select from faultline.ledger f where f.job_id = e.job_id);
