-- No suspended job without a nudge waits for jobs that have all ended, or for a signal that is there: nobody would wake it.
-- Calls that are awaited together are left out: one of them may be over.
select j.id as job_id, c.number, c.kind, c.name
from faultline.open_jobs j
join faultline.calls c on c.job_id = j.id and c.awaited and c.ended_at is null
where j.state = 'queued'
  and j.suspended
  and j.next_run_at > clock_timestamp()
  and c.together is not true
  and not exists (select from faultline.nudges n where n.job_id = j.id)
  and (
    c.kind = 'signal' and exists (
      select from faultline.signals s
      where s.job_id = c.job_id and s.name = c.name and s.received_by is null
        and case when s.for_call is null then c.fresh is not true or s.sent_at >= c.begun_at else s.for_call = c.number end
    )
    or c.kind in ('children', 'watch', 'after') and c.spawned >= coalesce(c.total, 0) and not exists (
      select from faultline.edges e
      join faultline.open_jobs o on o.id = e.job_id
      where e.call_id = c.id and o.state in ('queued', 'running')
    )
  );
