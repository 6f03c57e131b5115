-- Delete the unique keys that name these jobs, which failed or were cancelled and are about to be deleted: such a job counts for no
-- period, also once it is gone. A key that somebody holds is left alone.
create or replace function faultline.free_keys(job_ids uuid[], queues text[], keys text[], tasks text[]) returns void
language sql volatile
as $$
  delete from faultline.unique_keys k
  where k.ctid = any (array(
    select n.ctid
    from unnest(free_keys.job_ids, free_keys.queues, free_keys.keys, free_keys.tasks) as e (id, queue, key, task)
    cross join lateral (
      select k.ctid from faultline.unique_keys k
      where k.queue = e.queue and k.key = e.key and k.task = e.task and k.job_id = e.id
      for update skip locked
    ) n
  ));
$$;
