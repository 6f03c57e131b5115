-- Whether a job waits for an open job of this group, by what it or others that it waits for have called.
create or replace function faultline.waits_for_group(job_id uuid, queue text, group_key text) returns boolean
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  return exists (
    with recursive below as (
      select waits_for_group.job_id as id
      union
      select e.job_id
      from below b
      cross join lateral (select c.id from faultline.calls c where c.job_id = b.id and c.ended_at is null offset 0) c
      cross join lateral (select e.job_id from faultline.edges e where e.call_id = c.id offset 0) e
    )
    select
    from below b
    cross join lateral (select j.state, j.queue, j.group_key from faultline.open_jobs j where j.id = b.id offset 0) o
    where b.id <> waits_for_group.job_id
      and o.state in ('queued', 'running')
      and o.queue = waits_for_group.queue
      and o.group_key = waits_for_group.group_key
  );
end
$$;
