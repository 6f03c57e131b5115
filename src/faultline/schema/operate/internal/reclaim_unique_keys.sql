-- Give jobs that are queued again the unique keys that they had, so that submissions are answered with them. Before: the caller
-- has queued them. A key under which another job waits stays with it; of several jobs with one key, the newest gets it.
-- The caller has their rows, and keys come before rows: so a key that a submission holds is left to it.
create or replace function faultline.reclaim_unique_keys(job_ids uuid[]) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  job record;
  held uuid;
begin
  for job in
    select distinct on (j.queue, j.unique_key, j.task) j.id, j.queue, j.unique_key, j.task, j.created_at
    from faultline.open_jobs j
    where j.id = any (reclaim_unique_keys.job_ids)
    order by j.queue, j.unique_key, j.task, j.created_at desc, j.id desc
  loop
    insert into faultline.unique_keys (queue, key, task, job_id, at)
    select job.queue, job.unique_key, job.task, job.id, job.created_at
    -- Looked for first: to meet it, the insert would wait for who holds it.
    where not exists (
      select from faultline.unique_keys k where k.queue = job.queue and k.key = job.unique_key and k.task = job.task
    )
    on conflict do nothing;
    select k.job_id into held
    from faultline.unique_keys k
    where k.queue = job.queue and k.key = job.unique_key and k.task = job.task
    for update skip locked;
    -- In a statement of its own, after the lock.
    update faultline.unique_keys k
    set job_id = job.id
    where held <> job.id
      and k.queue = job.queue and k.key = job.unique_key and k.task = job.task and k.job_id = held
      and not exists (
        select from faultline.open_jobs o where o.id = held and coalesce(o.state, '') = 'queued'
      );
  end loop;
end
$$;
