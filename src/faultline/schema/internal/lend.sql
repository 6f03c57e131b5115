-- Divide the permits of a queue that are free between its shards: to those whose groups wait, or to all if none does.
-- A shard keeps what it has given out. Before: the caller holds all its shards, and has heard their events.
create or replace function faultline.lend(queue text, number integer) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  cap constant integer := (
    select faultline.cap_of(l.effective) from faultline.limits l where l.queue = lend.queue and l.group_key = ''
  );
begin
  if cap is null or lend.number = 1 then
    return;
  end if;
  with wanting as materialized (
    select
      s.shard, s.holding, s.lent, cap / lend.number + (s.shard < cap % lend.number)::integer as quota,
      exists (select from faultline.groups g where g.queue = s.queue and g.shard = s.shard and g.ready) as waits
    from faultline.shards s
    where s.queue = lend.queue
  ),
  sharing as materialized (
    select
      w.*, w.waits or not (select bool_or(o.waits) from wanting o) as gets,
      greatest(0, cap - (select sum(o.holding) from wanting o)) as free
    from wanting w
  ),
  parts as materialized (
    select
      s.*, case when s.gets then s.free / s.getting + (s.nth <= s.free % s.getting)::integer else 0 end as part
    from (
      select s.*, count(*) filter (where s.gets) over () as getting,
        row_number() over (partition by s.gets order by s.shard) as nth
      from sharing s
    ) s
  )
  update faultline.shards s
  set lent = p.holding + p.part - p.quota
  from parts p
  where s.queue = lend.queue and s.shard = p.shard and s.lent <> p.holding + p.part - p.quota;
end
$$;
