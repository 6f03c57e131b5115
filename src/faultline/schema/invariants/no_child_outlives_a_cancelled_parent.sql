-- No open job is the child of a job that has failed or was cancelled, unless a sweep is about to cancel it, or it only undoes.
select j.id as job_id, j.state, p.id as parent_id, p.state as parent_state
from faultline.open_jobs j
join faultline.calls c on c.id = j.call_id and c.kind = 'children'
join faultline.open_jobs p on p.id = c.job_id
where j.state in ('queued', 'running')
  and p.state in ('failed', 'cancelled')
  and not exists (select from faultline.sweeps s where s.job_id = p.id)
  and not exists (select from faultline.calls u where u.job_id = j.id and u.kind = 'saga' and u.outcome = 'failed');
