-- Divide the permits of a queue between its shards: in equal parts to those whose groups wait, or to all if none does. A shard
-- that has given out more than its part gives nothing until it has less, and the others have what is free meanwhile: so all of
-- them together never give out more than the limit. Which of them get one more changes with the time.
-- Before: the caller holds all its shards, and has applied their events.
create or replace function faultline.rebalance_permits(queue text, number integer) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  cap constant integer := (
    select faultline.cap_of(l.effective) from faultline.limits l where l.queue = rebalance_permits.queue and l.group_key = ''
  );
  second constant bigint := extract(epoch from faultline.clock());
begin
  if cap is null or rebalance_permits.number = 1 then
    return;
  end if;
  with wanting as materialized (
    select
      s.shard, s.holding, cap / rebalance_permits.number + (s.shard < cap % rebalance_permits.number)::integer as quota, (s.shard + second) % rebalance_permits.number as nth,
      exists (select from faultline.groups g where g.queue = s.queue and g.shard = s.shard and g.ready) as waits
    from faultline.shards s
    where s.queue = rebalance_permits.queue
  ),
  targets as materialized (
    select
      w.*, case when w.gets then cap / w.getting + (row_number() over (partition by w.gets order by w.nth) <= cap % w.getting)::integer
        else 0 end as target
    from (
      select w.*, count(*) filter (where w.gets) over () as getting
      from (select w.*, w.waits or not bool_or(w.waits) over () as gets from wanting w) w
    ) w
  ),
  parts as materialized (
    select
      t.shard, t.quota,
      case when t.holding >= t.target then t.target else t.holding + greatest(0, least(t.target - t.holding, t.free - t.before)) end as may_hold
    from (
      select
        t.*, greatest(0, cap - sum(t.holding) over ()) as free,
        coalesce(sum(greatest(0, t.target - t.holding)) over (order by t.nth rows between unbounded preceding and 1 preceding), 0) as before
      from targets t
    ) t
  )
  update faultline.shards s
  set lent = p.may_hold - p.quota
  from parts p
  where s.queue = rebalance_permits.queue and s.shard = p.shard and s.lent <> p.may_hold - p.quota;
end
$$;
