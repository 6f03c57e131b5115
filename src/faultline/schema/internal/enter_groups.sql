-- Tell the claims of their queues that these new jobs wait in their groups. One event per group.
create or replace function faultline.enter_groups(job_ids uuid[]) returns void
language plpgsql volatile
set enable_seqscan = off
as $$
#variable_conflict use_column
begin
  insert into faultline.group_events (queue, shard, group_key, priority, run_at)
  select k.queue, faultline.shard_of(k.group_key, q.shards), k.group_key, min(k.priority), min(k.group_at)
  -- By id only, as in wake_for.
  from (
    select j.queue, j.group_key, j.in_group, j.priority, j.group_at
    from faultline.open_jobs j
    where j.id = any (enter_groups.job_ids)
    offset 0
  ) k
  join faultline.queues q on q.name = k.queue
  where k.in_group
  group by k.queue, q.shards, k.group_key;
end
$$;
