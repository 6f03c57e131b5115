-- A received signal was received by a call of its job that has ended, and no call received two.
-- Not those with a token before the number: their calls are no history any more, by continue_as_new or retry.
select s.job_id, s.name, s.received_by, count(*) as signals
from faultline.signals s
where s.received_by is not null and strpos(s.received_by, '/') = 0
group by s.job_id, s.name, s.received_by
having count(*) > 1
  or not exists (
    select from faultline.calls c
    where c.job_id = s.job_id and c.number = s.received_by and c.kind = 'signal' and c.name = s.name and c.outcome = 'done'
  );
