-- Upkeep of queues with limits: permits are counted anew, and what is gone is forgotten.

-- Apply the events of one queue with limits; once a minute all of them, whatever their numbers: a net under every mistake.
-- Recount its permits if `miscounted`. Forget groups that have nothing left, up to `most`. Returns how many.
create or replace function faultline.maintain_queue(queue text, most integer, miscounted boolean) returns integer
language plpgsql volatile
-- Custom plans: a generic one, made here, would be the one that claims of this session have, too.
set plan_cache_mode = force_custom_plan
set jit = off
set max_parallel_workers_per_gather = 0
as $$
#variable_conflict use_column
declare
  due constant timestamptz := faultline.clock();
  was faultline.limited_queues;
  limited_queue faultline.limited_queues;
  apply_all boolean;
  forgotten integer;
begin
  select l.* into was
  from faultline.limited_queues l
  where l.queue = maintain_queue.queue
  order by l.changed_second desc
  limit 1
  for update skip locked;
  if not found then
    -- Locked by another session, or missing: then nothing would be granted until it is written again.
    if not exists (select from faultline.limited_queues l where l.queue = maintain_queue.queue) then
      perform from faultline.queues q where q.name = maintain_queue.queue for update skip locked;
      if found then
        perform faultline.limit_queue(maintain_queue.queue);
      end if;
    end if;
    return 0;
  end if;
  limited_queue := was;
  apply_all := limited_queue.all_events_applied_at not between due - interval '1 minute' and due + interval '1 second';
  if apply_all then
    limited_queue.all_events_applied_at := due;
    limited_queue.seen_to := '0';
    limited_queue.seen_open := '{}';
  end if;
  limited_queue := (faultline.apply_group_events(limited_queue, due)).limited_queue;
  -- Virtual times only grow, and the steps between groups are small: far from zero, a double would lose them.
  if limited_queue.virtual_time > 1e6 then
    update faultline.groups g
    set virtual_time = g.virtual_time - limited_queue.virtual_time
    where g.queue = maintain_queue.queue;
    limited_queue.arrival_virtual_time := limited_queue.arrival_virtual_time - limited_queue.virtual_time;
    limited_queue.virtual_time := 0;
  end if;
  perform faultline.save_limited_queue(was, limited_queue, due);
  if apply_all then
    -- A time that was set while the clock was ahead is no time.
    update faultline.groups g
    set ready = g.has_waiting, not_before = null
    where g.queue = maintain_queue.queue and g.not_before is not null and g.changed_second > extract(epoch from due) + 1;
    -- A group behind the virtual time of its queue: claims would not see it.
    update faultline.groups g
    set virtual_time = limited_queue.arrival_virtual_time
    where g.queue = maintain_queue.queue and g.ready and g.holding_per_weight = 0
      and g.virtual_time < limited_queue.virtual_time;
  end if;
  forgotten := faultline.forget_groups(maintain_queue.queue, due, maintain_queue.most);
  if maintain_queue.miscounted then
    perform faultline.recount_queue(maintain_queue.queue);
  end if;
  return forgotten;
end
$$;

-- Whether a permit of a queue with limits is counted wrong, or a job runs that is not counted. One statement, so one snapshot,
-- in which all counts must be right. It locks nothing: `maintain_limits` locks the queue only to correct what is wrong.
create or replace function faultline.is_miscounted(queue text) returns boolean
language plpgsql volatile
set plan_cache_mode = force_custom_plan
set jit = off
as $$
#variable_conflict use_column
begin
  return (
    with permits as materialized (
      select j.group_key, true as runs
      from faultline.open_jobs j
      where j.state = 'running' and j.lease_expires_at <= 'infinity' and j.queue = is_miscounted.queue
      union all
      -- Kept while its job waits for another attempt.
      select j.group_key, false
      from faultline.open_jobs j
      where j.queue = is_miscounted.queue
        and j.state = 'queued' and j.group_key is not null and j.in_group is null and j.has_permit
    ),
    events as materialized (
      select e.freed, e.group_keys, e.freed_groups from faultline.group_events e where e.queue = is_miscounted.queue
    )
    select (
      select l.holding <> (select count(*) from permits p where p.runs) + (select coalesce(sum(e.freed), 0) from events e)
      from faultline.limited_queues l
      where l.queue = is_miscounted.queue
    ) or exists (
      select
      from (
        select g.group_key, g.holding from faultline.groups g where g.queue = is_miscounted.queue and g.holding <> 0
        union all
        select p.group_key, -1 from permits p where p.group_key is not null
        union all
        select p.group_key, -p.freed_group
        from events e
        cross join lateral unnest(e.group_keys, e.freed_groups) as p (group_key, freed_group)
        where p.freed_group <> 0
      ) k
      group by k.group_key
      having sum(k.holding) <> 0
    )
  );
end
$$;

-- Count the permits of a queue: from the jobs that hold them, and from those that were freed by events which are not applied
-- yet. One statement, so one snapshot. Before: the caller holds the queue's lock. Returns how many counts were wrong.
create or replace function faultline.recount_queue(queue text) returns integer
language plpgsql volatile
set plan_cache_mode = force_custom_plan
set jit = off
as $$
#variable_conflict use_column
declare
  second constant bigint := extract(epoch from faultline.clock());
  wrong integer;
begin
  perform faultline.permit_running_jobs(recount_queue.queue);
  with permits as materialized (
    select j.group_key, true as runs
    from faultline.open_jobs j
    where j.state = 'running' and j.lease_expires_at <= 'infinity' and j.queue = recount_queue.queue and j.has_permit
    union all
    -- Kept while its job waits for another attempt.
    select j.group_key, false
    from faultline.open_jobs j
    where j.queue = recount_queue.queue
      and j.state = 'queued' and j.group_key is not null and j.in_group is null and j.has_permit
  ),
  events as materialized (
    select e.freed, e.group_keys, e.freed_groups from faultline.group_events e where e.queue = recount_queue.queue
  ),
  of_queue as (
    update faultline.limited_queues l
    set holding = n.holding
    from (
      select (select count(*) from permits p where p.runs) + coalesce((select sum(e.freed) from events e), 0) as holding
    ) n
    where l.queue = recount_queue.queue and l.holding <> n.holding
    returning null::text as group_key, n.holding
  ),
  of_groups as materialized (
    select k.group_key, sum(k.holding)::integer as holding
    from (
      select p.group_key, 1 as holding from permits p where p.group_key is not null
      union all
      select p.group_key, p.freed_group
      from events e
      cross join lateral unnest(e.group_keys, e.freed_groups) as p (group_key, freed_group)
      where p.freed_group <> 0
      union all
      select g.group_key, 0 from faultline.groups g where g.queue = recount_queue.queue
    ) k
    group by k.group_key
  ),
  changed as (
    update faultline.groups g
    set holding = greatest(0, o.holding),
        holding_per_weight = greatest(0, o.holding) / faultline.weight_of(faultline.group_limit(g.queue, g.group_key)),
        ready = g.has_waiting and g.not_before is null,
        virtual_time = greatest(
          g.virtual_time, (select l.arrival_virtual_time from faultline.limited_queues l where l.queue = recount_queue.queue)
        )
    from of_groups o
    where g.queue = recount_queue.queue and g.group_key = o.group_key and g.holding <> greatest(0, o.holding)
    returning g.group_key, g.holding
  ),
  made as (
    insert into faultline.groups (group_key, queue, changed_second, holding, holding_per_weight)
    select o.group_key, recount_queue.queue, second, o.holding, o.holding
    from of_groups o
    where o.holding > 0 and not exists (
      select from faultline.groups g where g.queue = recount_queue.queue and g.group_key = o.group_key
    )
    returning group_key, holding
  ),
  all_wrong as materialized (
    select q.group_key, q.holding from of_queue q
    union all
    select c.group_key, c.holding from changed c
    union all
    select m.group_key, m.holding from made m
  ),
  logged as (
    insert into faultline.journal (at, event, detail)
    select
      faultline.clock(), 'permits_recounted',
      jsonb_build_object('queue', recount_queue.queue, 'group', w.group_key, 'is', w.holding)
    from all_wrong w
    limit 100
  )
  select count(*) into wrong from all_wrong;
  return wrong;
end
$$;

-- Count the jobs of a queue that run without a permit: they were claimed before it had limits, or in that moment. Rows that are
-- locked are counted the next time: `maintain_limits` looks once a minute. Before: the caller holds the queue's lock.
create or replace function faultline.permit_running_jobs(queue text) returns integer
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  marked record;
begin
  with found as materialized (
    select j.ctid
    from faultline.open_jobs j
    where j.state = 'running' and j.lease_expires_at <= 'infinity' and j.queue = permit_running_jobs.queue and j.has_permit is null
    for update skip locked
  ),
  done as (
    update faultline.open_jobs j
    set has_permit = true
    from found f
    where j.ctid = f.ctid
    returning j.group_key
  )
  select
    coalesce(sum(g.jobs), 0)::integer as jobs,
    array_agg(g.group_key) filter (where g.group_key is not null) as group_keys,
    array_agg(-g.jobs::integer) filter (where g.group_key is not null) as freed_groups
  into marked
  from (select d.group_key, count(*) as jobs from done d group by d.group_key) g;
  -- As events that take permits: the next claim adds them up.
  if marked.jobs > 0 then
    insert into faultline.group_events (queue, freed) values (permit_running_jobs.queue, -marked.jobs);
    perform faultline.insert_group_events(permit_running_jobs.queue, marked.group_keys, marked.freed_groups, null, null);
  end if;
  return marked.jobs;
end
$$;

-- Forget groups that have nothing left, up to `most`. Not too early: a group would have its tokens again. Returns how many.
create or replace function faultline.forget_groups(queue text, due timestamptz, most integer) returns integer
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  each_group constant jsonb := faultline.group_limit(forget_groups.queue, '*');
  have_own constant boolean := exists (
    select from faultline.limits l where l.queue = forget_groups.queue and l.group_key not in ('', '*')
  );
  -- What holds for each is read once: many may rest.
  rested constant double precision := extract(epoch from due) - 10
    - coalesce((each_group ->> 'burst')::double precision / faultline.rate_of(each_group), 0);
  forgotten integer;
begin
  delete from faultline.groups g
  where g.ctid = any (array(
    select i.ctid
    from faultline.groups i
    where i.queue = forget_groups.queue and not i.has_waiting and i.holding = 0
      and i.changed_second < rested
      and (not have_own or i.changed_second < coalesce((
        select extract(epoch from due) - 10 - (o.fields ->> 'burst')::double precision / faultline.rate_of(o.fields)
        from (
          select each_group || l.effective as fields
          from faultline.limits l
          where l.queue = i.queue and l.group_key = i.group_key
        ) o
        where faultline.rate_of(o.fields) is not null
      ), rested))
    order by i.changed_second
    limit forget_groups.most
  ));
  get diagnostics forgotten = row_count;
  return forgotten;
end
$$;

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
