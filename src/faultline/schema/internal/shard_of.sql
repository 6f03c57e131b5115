-- The shard that a group belongs to. By md5: the same on every version and machine, so that a restore keeps it.
create or replace function faultline.shard_of(group_key text, shards integer) returns smallint
language sql immutable parallel safe
return case when shards > 1 then (('x' || left(md5(group_key), 8))::bit(32)::bigint % shards)::smallint else 0::smallint end;
