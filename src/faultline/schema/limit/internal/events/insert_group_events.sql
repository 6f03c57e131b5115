-- Note for the claims of a queue what happened to its groups: permits that are free, the first job that came into each.
-- A hundred to an event: a claim applies some, and leaves the rest to the next.
create or replace function faultline.insert_group_events(
  queue text, group_keys text[], freed_groups integer[], priorities smallint[], run_ats timestamptz[]
) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  insert into faultline.group_events (queue, arrival, group_count, group_keys, freed_groups, priorities, run_ats)
  select
    insert_group_events.queue, coalesce(bool_and(g.freed_group = 0), true), count(*), array_agg(g.group_key),
    array_agg(g.freed_group), array_agg(g.priority), array_agg(g.run_at)
  from (
    select p.*, (row_number() over () - 1) / 100 as part
    from unnest(
      insert_group_events.group_keys, insert_group_events.freed_groups, insert_group_events.priorities,
      insert_group_events.run_ats
    ) as p (group_key, freed_group, priority, run_at)
  ) g
  group by g.part;
end
$$;
