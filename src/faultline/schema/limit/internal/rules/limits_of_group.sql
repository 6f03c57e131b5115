-- What one group may do: as each, but for its own fields. Claims call it for each group that they look at, so it is a query that
-- PostgreSQL puts into theirs, and `each_group` is what each_group_limits has read.
create or replace function faultline.limits_of_group(
  queue text, group_key text, each_group faultline.group_limits
) returns table (cap integer, rate double precision, burst double precision, weight double precision)
language sql stable
as $$
  select
    case when o.fields is null then (each_group).cap else coalesce(faultline.cap_of(o.fields), 2147483647) end,
    case when o.fields is null then (each_group).rate else faultline.rate_of(o.fields) end,
    case when o.fields is null then (each_group).burst else (o.fields ->> 'burst')::double precision end,
    case when o.fields is null then (each_group).weight else faultline.weight_of(o.fields) end
  from (select) as one
  left join lateral (
    select (each_group).fields || l.effective as fields
    from faultline.limits l
    where (each_group).have_own and l.queue = limits_of_group.queue and l.group_key = limits_of_group.group_key
    limit 1
  ) o on true
  offset 0
$$;
