-- Give back the permits of jobs that `complete` has removed: all at once. The trigger free_permits does it for every other
-- ending, with several statements for each job. Without `wakes`, no worker is woken for them: the caller claims next. The insert
-- is whole, however soon its loop ends.
create or replace function faultline.free_ended(queues text[], group_keys text[], wakes boolean) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  one record;
begin
  for one in
    insert into faultline.group_events (queue, freed, group_count, group_keys, freed_groups)
    select
      g.queue, sum(g.jobs), count(g.group_key), array_agg(g.group_key) filter (where g.group_key is not null),
      array_agg(g.jobs) filter (where g.group_key is not null)
    from (
      select e.queue, e.group_key, count(*)::integer as jobs, (row_number() over () - 1) / 100 as part
      from unnest(free_ended.queues, free_ended.group_keys) as e (queue, group_key)
      group by e.queue, e.group_key
    ) g
    group by g.queue, g.part
    returning queue, group_keys
  loop
    exit when not wakes;
    perform faultline.wake_for_free_permit(one.queue, one.group_keys);
  end loop;
end
$$;
