-- Claims read groups that hold nothing from the virtual time of their queue on: one that stands before it would wait for
-- `maintain_limits`.
select g.queue, g.group_key, g.virtual_time, l.virtual_time as queue_virtual_time
from faultline.groups g
join faultline.limited_queues l on l.queue = g.queue
where g.ready and g.holding_per_weight = 0 and g.virtual_time < l.virtual_time;
