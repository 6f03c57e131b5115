-- Make one nudge of all of these that are for one job. It is looked at again after a pause that doubles each time, up to 5 seconds.
-- Returns those that are left, and how many of them are worth asking for soon.
create or replace function faultline.pause_nudges(held bigint[], out ids bigint[], out soon integer)
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  with merged as (
    select min(n.id) as id, max(n.kind) as kind from faultline.nudges n where n.id = any (pause_nudges.held) group by n.job_id
  ),
  paused as (
    update faultline.nudges n
    set not_before = faultline.clock() + make_interval(secs => least(0.05 * 2 ^ least(n.looks, 10), 5)),
        looks = n.looks + 1,
        kind = m.kind
    from merged m
    where n.id = any (array[m.id])
    returning n.id, n.looks
  )
  select array_agg(p.id), count(*) filter (where p.looks <= 4) into ids, soon from paused p;
end
$$;
