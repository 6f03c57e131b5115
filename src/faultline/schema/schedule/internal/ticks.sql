-- Steps of a tick.

-- The job of one tick, as `enqueue_many` reads it. `at` is the tick, `now` the time: with jitter the job runs a little after
-- the later of both. How much later follows from name and tick, so it is the same whoever decides, and however often.
-- A group or unique key that is made from `tick_arg` is stored as a template (see fill_template): each tick has its own.
create or replace function faultline.tick_job(
  name text, spec json, at timestamptz, now timestamptz, jitter boolean default true
) returns json
language sql stable
as $$
  with late as (
    select greatest(tick_job.at, tick_job.now) + make_interval(secs => case when tick_job.jitter then coalesce((spec ->> 'jitter_seconds')::float8, 0) else 0 end * (
      ('x' || left(md5(tick_job.name || ' ' || extract(epoch from tick_job.at)), 8))::bit(32)::bigint / 4294967296.0::float8
    )) as run_at
  ),
  given as (
    select case when spec ->> 'tick_arg' is null then spec -> 'job' -> 'args' else (
      select json_object_agg(a.key, a.value)
      from (
        select o.key, o.value
        from json_each(case json_typeof(spec -> 'job' -> 'args') when 'object' then spec -> 'job' -> 'args' else '{}' end) o
        where o.key <> spec ->> 'tick_arg'
        union all
        -- As Python writes it: then a job that a program enqueues for this moment has the same arguments, and the same key.
        select spec ->> 'tick_arg', to_json(
          to_char(tick_job.at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS')
          || coalesce(nullif(to_char(tick_job.at at time zone 'UTC', '.US'), '.000000'), '') || '+00:00'
        )
      ) a
    ) end as args
  )
  select json_object_agg(f.name, f.value)
  from (
    select j.key as name, case
      when j.key = 'group' and json_typeof(j.value) = 'array'
        then to_json(faultline.fill_template(j.value::jsonb, given.args, 'the group of schedule ' || tick_job.name))
      when j.key = 'unique' and json_typeof(j.value -> 'key') = 'array'
        then jsonb_set(j.value::jsonb, '{key}', to_jsonb(
          faultline.fill_template((j.value -> 'key')::jsonb, given.args, 'the unique key of schedule ' || tick_job.name)
        ))::json
      else j.value
    end as value
    from json_each(spec -> 'job') j
    cross join given
    where j.key <> 'args'
    union all
    select 'args', given.args from given where given.args is not null
    union all
    -- Without it a job that is due now comes behind those that were due before.
    select 'run_at', to_json(to_char(late.run_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'))
    from late
    where late.run_at > tick_job.now
  ) f;
$$;

-- Decide about one tick of a schedule that has come due: record it, and enqueue its job, unless the jobs that run still, `busy`, keep it
-- from that. Before: the caller has locked the schedule. After: `faultline.verb` is tick, and `busy` are the jobs that run now.
-- `outcome`: null where the tick is on record already.
create or replace function faultline.fire_tick(
  schedule faultline.schedules, at timestamptz, clock timestamptz, inout busy uuid[], out outcome text, out job_id uuid
)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  overlap constant text := coalesce(schedule.spec ->> 'overlap', 'allow');
  is_new boolean;
begin
  outcome := 'fired';
  if overlap <> 'allow' then
    busy := faultline.busy_jobs(busy);
    if overlap = 'skip' and cardinality(busy) >= 1 or overlap = 'one' and cardinality(busy) >= 2 then
      outcome := 'skipped';
    end if;
  end if;
  perform faultline.set_current_verb('tick');
  insert into faultline.ticks (schedule_id, at, kind, outcome, decided_at)
  values (schedule.id, fire_tick.at, 'tick', fire_tick.outcome, clock)
  on conflict do nothing;
  if not found then
    outcome := null;
  elsif outcome = 'fired' then
    if overlap = 'cancel' and not faultline.cancel_busy(busy) then
      -- A job is in a transaction of its own. The tick waits for it: nothing was decided.
      raise exception 'a job of schedule % cannot be cancelled now', schedule.name using errcode = '55P03';
    end if;
    select e.job_id, e.created into job_id, is_new
    from faultline.enqueue_many(json_build_array(faultline.tick_job(schedule.name, schedule.spec, fire_tick.at, clock))) e;
    -- What stands in for a unique job is somebody else's, and may be the very job that it would wait for.
    if overlap = 'one' and is_new and cardinality(busy) > 0 and not faultline.wait_behind(job_id, busy[1]) then
      raise exception 'the job of schedule % that runs cannot be waited for now', schedule.name using errcode = '55P03';
    end if;
    perform faultline.set_current_verb('tick');
    update faultline.ticks k
    set job_id = fire_tick.job_id
    where k.schedule_id = schedule.id and k.at = fire_tick.at and k.kind = 'tick';
    busy := case when overlap in ('skip', 'one') then busy || job_id else array[job_id] end;
  end if;
end
$$;

-- Whether a job of this flow is still open: queued or running. Reads all jobs of the flow, so it is asked once per flow.
create or replace function faultline.is_live(flow_id uuid) returns boolean
language plpgsql volatile
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
begin
  return exists (
    with recursive members as (
      select is_live.flow_id as id
      union
      select e.job_id
      from members m
      cross join lateral (select c.id from faultline.calls c where c.job_id = m.id and c.kind = 'children' offset 0) c
      cross join lateral (select e.job_id from faultline.edges e where e.call_id = c.id offset 0) e
    )
    select
    from members m
    cross join lateral (select j.state, j.flow_id from faultline.open_jobs j where j.id = m.id offset 0) o
    where o.state in ('queued', 'running') and o.flow_id = is_live.flow_id
  );
end
$$;

-- Those of these jobs that have not ended, with everything that they called. In the order given. One that has expired will not
-- run: after an outage, a tick may be decided before anybody has cancelled it.
create or replace function faultline.busy_jobs(jobs uuid[]) returns uuid[]
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  return array(
    select u.id
    from unnest(busy_jobs.jobs) with ordinality as u (id, position)
    where (
        exists (select from faultline.open_jobs j where j.id = u.id and j.state in ('queued', 'running'))
        -- A flow may go on after its first job.
        or (exists (select from faultline.flows f where f.id = u.id) and faultline.is_live(u.id))
      )
      and not exists (
        select from (select * from faultline.open_jobs j where j.id = u.id offset 0) j
        where faultline.has_expired(j.state, j.fencing_token, j.expires_at, faultline.clock())
      )
    order by u.position
  );
end
$$;

-- Cancel those of these jobs that have not ended. Returns whether all of them could be: nobody waits here for a job that is in
-- a transaction of its own.
create or replace function faultline.cancel_busy(jobs uuid[]) returns boolean
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  free uuid[];
begin
  free := array(
    select j.id from faultline.open_jobs j
    where j.id = any (cancel_busy.jobs) and j.state in ('queued', 'running')
    for update skip locked
  );
  if exists (
    select from faultline.open_jobs j
    where j.id = any (cancel_busy.jobs) and j.state in ('queued', 'running') and j.id <> all (free)
  ) then
    return false;
  end if;
  perform faultline.cancel(f.id, 'the next tick of its schedule has come') from unnest(free) as f (id);
  return true;
end
$$;

-- Let a job that this transaction has enqueued wait until another has ended, whichever way: the tick of a schedule that lets one
-- run at a time. It waits as a job of a graph does that comes after one, so whatever ends the other wakes it: also a worker's
-- death, a failover, a person. It keeps no time of its own.
-- Returns false, and nothing is written, if the other is locked: whoever ends it at this moment would not see that it is waited
-- for. So too if it is not open: it has just ended, or it was the root of a flow of which the last jobs are being cancelled.
create or replace function faultline.wait_behind(job_id uuid, earlier uuid) returns boolean
language plpgsql volatile
set plan_cache_mode = force_generic_plan
set jit = off
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
  call bigint;
begin
  perform from faultline.open_jobs j
  where j.id = wait_behind.earlier and j.state in ('queued', 'running')
  for update skip locked;
  if not found then
    return false;
  end if;
  update faultline.open_jobs j set watched = true where j.id = wait_behind.earlier and j.watched is not true;
  update faultline.open_jobs j
  set suspended = true, next_run_at = '9999-01-01Z', in_group = null, group_at = null
  where j.id = wait_behind.job_id;
  perform faultline.join_flow(wait_behind.job_id);
  insert into faultline.calls (job_id, number, kind, name, fencing_token, begun_at, awaited, policy, total, spawned)
  values (wait_behind.job_id, '0', 'after', 'the job of an earlier tick', 0, faultline.clock(), true, 'run', 1, 1)
  returning id into call;
  insert into faultline.edges (call_id, index, job_id) values (call, 0, wait_behind.earlier);
  return true;
end
$$;
