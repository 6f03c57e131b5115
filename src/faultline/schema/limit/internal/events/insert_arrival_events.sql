-- Tell the claims of their queues that these new jobs wait in their groups.
create or replace function faultline.insert_arrival_events(job_ids uuid[]) returns void
language plpgsql volatile
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
  one record;
begin
  for one in
    select g.queue, array_agg(g.group_key) as group_keys, array_agg(g.priority) as priorities, array_agg(g.run_at) as run_ats
    from (
      select k.queue, k.group_key, min(k.priority) as priority, min(k.group_at) as run_at
      -- By id only, as in wake_for.
      from (
        select j.queue, j.group_key, j.in_group, j.priority, j.group_at
        from faultline.open_jobs j
        where j.id = any (insert_arrival_events.job_ids)
        offset 0
      ) k
      where k.in_group
      group by k.queue, k.group_key
    ) g
    group by g.queue
  loop
    perform faultline.insert_group_events(one.queue, one.group_keys, null, one.priorities, one.run_ats);
  end loop;
end
$$;
