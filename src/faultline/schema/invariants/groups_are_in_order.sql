-- Claims read groups that hold nothing from the virtual time of their shard on: one that stands before it would wait for
-- `maintain_limits`.
select g.queue, g.group_key, g.virtual_time, s.virtual_time as shard_virtual_time
from faultline.groups g
join faultline.shards s on s.queue = g.queue and s.shard = g.shard
where g.ready and g.holding_per_weight = 0 and g.virtual_time < s.virtual_time;
