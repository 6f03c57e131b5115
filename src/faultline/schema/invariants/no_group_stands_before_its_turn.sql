-- Claims read groups that hold nothing from the turn of their shard on: one that stands before it would wait for `fold`.
select g.queue, g.group_key, g.turn, s.turn as shard_turn
from faultline.groups g
join faultline.shards s on s.queue = g.queue and s.shard = g.shard
where g.ready and g.load = 0 and g.turn < s.turn;
