-- Claims of a queue with limits lock its row. Without one, nothing is granted; with two, claims do not wait for each other.
select coalesce(q.name, l.queue) as queue, count(q.name) > 0 as limited, count(l.queue) as rows
from (select q.name from faultline.queues q where q.limited) q
full join faultline.limited_queues l on l.queue = q.name
group by coalesce(q.name, l.queue)
having count(q.name) <> 1 or count(l.queue) <> 1;
