-- Groups whose time has come are ready again: there is a token, or a row may no longer be locked. A time that a clock set far
-- ahead is no time.
create or replace function faultline.let_ready(shard faultline.shards, due timestamptz) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  update faultline.groups g
  set ready = g.more, not_before = null, turn = greatest(g.turn, shard.entry), epoch = greatest(g.epoch, extract(epoch from due)::bigint)
  where g.ctid = any (array(
    select o.ctid
    from faultline.groups o
    where o.queue = shard.queue and o.shard = shard.shard and o.not_before <= let_ready.due
    order by o.not_before
    limit 1000
  ));
end
$$;
