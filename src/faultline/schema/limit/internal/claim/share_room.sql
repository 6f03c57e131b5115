-- How many jobs each of these groups is granted of `room`: as if one job after another were granted to the group that holds least
-- for its weight, then to the one with the least virtual time. In one round no group gets more than twice its part.
create or replace function faultline.share_room(groups faultline.ready_group[], room integer) returns integer[]
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  weights double precision;
  one_each boolean;
begin
  -- Nothing to choose: no group may have two, or there is one for each and no second job comes before another group's first.
  select
    sum(g.weight),
    max(g.room) <= 1 or count(*) = share_room.room and max(g.holding / g.weight) < min((g.holding + 1) / g.weight)
  into weights, one_each
  from unnest(groups) g;
  if one_each then
    return array(select least(g.room, 1) from unnest(groups) g);
  end if;
  return array(
    select count(*) filter (where s.nth_job <= share_room.room)
    from (
      select
        g.nth_group,
        case when n.nth is not null then
          row_number() over (order by (g.holding + n.nth - 1) / g.weight, g.virtual_time + (n.nth - 1) / g.weight, g.group_key)
        end as nth_job
      from (select row_number() over () as nth_group, g.* from unnest(groups) g) g
      left join lateral generate_series(
        1, least(g.room, 2 + ceil(2 * share_room.room * g.weight / weights)::integer)
      ) as n (nth) on true
    ) s
    group by s.nth_group
    order by s.nth_group
  );
end
$$;
