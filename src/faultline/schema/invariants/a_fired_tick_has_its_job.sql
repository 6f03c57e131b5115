-- Every tick that fired has its job, and lies before the next one of its schedule: otherwise it would fire again.
select s.name as schedule, t.at as tick, t.outcome, t.job_id
from faultline.ticks t
join faultline.schedules s on s.id = t.schedule_id
where t.kind = 'tick'
  and (t.outcome <> 'skipped' and t.job_id is null or t.outcome <> 'backfilled' and t.at >= s.next_at);
