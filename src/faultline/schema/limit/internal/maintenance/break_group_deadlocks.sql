-- Let jobs go on that wait for each other's groups. In groups that keep their order, a suspended job keeps its group's permit. Two
-- of them, each of which waits for a job of the other's group, would wait for ever: a transfer from A to B that calls the credit of
-- B, and one from B to A. So would one that waits for a job that came to wait for another of its group later.
-- Of each such circle the youngest gives its permit back, and takes its turn in its group when it is woken. The journal says so:
-- another job of its group may run in the middle of it.
-- Reads every such job, and all that they wait for.
create or replace function faultline.break_group_deadlocks() returns void
language plpgsql volatile
set plan_cache_mode = force_custom_plan
set jit = off
set enable_seqscan = off
set enable_sort = off
as $$
#variable_conflict use_column
declare
  job record;
begin
  for job in
    with recursive keeping as materialized (
      select j.id, j.queue, j.group_key
      from faultline.queues q
      cross join lateral (
        select j.id, j.queue, j.group_key, j.suspended, j.next_run_at
        from faultline.open_jobs j
        where j.queue = q.name and j.state = 'queued' and j.group_key is not null and j.in_group is null
          and j.has_permit
        -- In order, so that no other index fits.
        order by j.has_permit, j.next_run_at, j.id
        offset 0
      ) j
      where q.limited
        and j.suspended
        and j.next_run_at > faultline.clock()
        -- Only permits that other jobs of the group wait for.
        and exists (select from faultline.open_jobs o where o.in_group and o.queue = j.queue and o.group_key = j.group_key)
    ),
    below as (
      select k.id as keeper, k.id from keeping k
      union
      select b.keeper, e.job_id
      from below b
      cross join lateral (select c.id from faultline.calls c where c.job_id = b.id and c.ended_at is null offset 0) c
      cross join lateral (select e.job_id from faultline.edges e where e.call_id = c.id offset 0) e
    ),
    waits as materialized (
      select distinct b.keeper as waiter, k.id as waited_for
      from below b
      cross join lateral (
        select j.queue, j.group_key, j.in_group from faultline.open_jobs j where j.id = b.id offset 0
      ) o
      join keeping k on k.queue = o.queue and k.group_key = o.group_key
      where o.in_group
    ),
    walks as (
      select w.waiter as first, w.waited_for as last from waits w
      union
      select k.first, w.waited_for
      from walks k
      join waits w on w.waiter = k.last
      where k.first <> k.last
    ),
    circles as (
      select k.first as id from walks k where k.first = k.last
    )
    -- Of all in circles that reach each other, the youngest.
    select c.id
    from circles c
    where not exists (
      select from walks k join circles o on o.id = k.last where k.first = c.id and k.last > c.id
    )
  loop
    with freed as (
      update faultline.open_jobs j
      set has_permit = null
      where j.ctid = (
        select o.ctid from faultline.open_jobs o
        where o.id = job.id and o.state = 'queued' and o.suspended and o.has_permit
        for update skip locked
      )
      returning j.id, j.queue, j.group_key, j.fencing_token
    ),
    recorded as (
      insert into faultline.journal (at, job_id, event, fencing_token, detail)
      select faultline.clock(), f.id, 'group_deadlock_broken', f.fencing_token, jsonb_build_object('queue', f.queue, 'group', f.group_key)
      from freed f
    )
    select f.queue, f.group_key into job from freed f;
    continue when not found;
    perform faultline.insert_group_events(job.queue, array[job.group_key], array[1], null, null);
    perform faultline.wake_for_free_permit(job.queue, array[job.group_key]);
  end loop;
end
$$;
