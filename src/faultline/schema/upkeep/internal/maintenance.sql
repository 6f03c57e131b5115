-- What else workers look after.

-- Cancel a job of each circle of suspended jobs that wait for each other: none of them could ever go on, and nobody would
-- know until their time is up. The others then go on, and see that it was cancelled. Of those in the circle that wait for a
-- job that is not their child, the youngest is cancelled.
-- A job that also waits for a signal, or for a time within the next hour, may go on by itself: it is left alone.
-- Reads every awaited call.
create or replace function faultline.cancel_deadlocked_jobs() returns void
language plpgsql volatile
set plan_cache_mode = force_custom_plan
set jit = off
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
  job record;
begin
  for job in
    with recursive stuck as materialized (
      select j.id, j.call_id
      from (select distinct c.job_id from faultline.calls c where c.awaited and c.ended_at is null) w
      cross join lateral (select * from faultline.open_jobs j where j.id = w.job_id offset 0) j
      where j.state = 'queued'
        and j.suspended
        and j.next_run_at > faultline.clock() + interval '1 hour'
        and not exists (
          select from faultline.calls c
          where c.job_id = j.id and c.awaited and c.ended_at is null and c.kind not in ('children', 'watch', 'after')
        )
    ),
    waits as materialized (
      select s.id as waiter, o.id as waited_for, c.kind <> 'after' and o.call_id is distinct from c.id as is_watch
      from stuck s
      cross join lateral (
        select c.id, c.kind from faultline.calls c where c.job_id = s.id and c.awaited and c.ended_at is null offset 0
      ) c
      cross join lateral (select e.job_id from faultline.edges e where e.call_id = c.id offset 0) e
      join stuck o on o.id = e.job_id
    ),
    -- From jobs that watch only: children, and what comes before in a graph, make no circle. A graph has many ways through it.
    walks as (
      select w.waiter as first, w.waited_for as last from waits w where w.is_watch
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
    perform from faultline.open_jobs j where j.id = job.id and j.state = 'queued' and j.suspended for update skip locked;
    continue when not found;
    perform faultline.cancel_waiting(
      job.id, 'cancelled: it waited for a job that waited for it', jsonb_build_object('reason', 'deadlock')
    );
  end loop;
end
$$;

-- Nudge up to `max_jobs` suspended jobs whose wait seems to be over, and that have no nudge. Only foreign SQL, or a restore
-- of some tables, makes it necessary. Reads every awaited call.
create or replace function faultline.wake_overdue_suspended(max_jobs integer) returns void
language plpgsql volatile
set plan_cache_mode = force_custom_plan
set jit = off
set enable_seqscan = off
as $$
#variable_conflict use_column
begin
  insert into faultline.nudges (job_id, kind)
  select distinct c.job_id, 1
  from faultline.calls c
  cross join lateral (select j.state, j.suspended from faultline.open_jobs j where j.id = c.job_id offset 0) j
  where c.awaited
    and c.ended_at is null
    and j.state = 'queued'
    and j.suspended
    and case
      when c.kind = 'signal' then case
        -- First by the index alone: a million jobs may wait, and few of them have a signal.
        when (
          select s.id from faultline.signals s where s.job_id = c.job_id and s.name = c.name and s.received_by is null limit 1
        ) is not null then faultline.kept_signal(c.job_id, c.name, c.number, c.fresh, c.begun_at) is not null
        else false
      end
      when c.kind in ('children', 'watch', 'after') then faultline.open_child(c.id, 2147483647) is null
      else false
    end
    and c.job_id not in (select n.job_id from faultline.nudges n)
  limit wake_overdue_suspended.max_jobs;
end
$$;

-- Bring schedules back whose position is that of a clock that was ahead. No tick of theirs would come until then, and nobody
-- could help that: a position only grows. Ticks from now on count; one that has its job makes no second.
-- A clock that was set back by less than a minute catches up.
create or replace function faultline.set_back_schedules() returns void
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  moment constant timestamptz := faultline.clock();
  one record;
begin
  for one in
    select
      s.id, s.name, s.last_at, greatest(s.since, s.last_at) > moment + interval '1 minute' as is_ahead,
      -- An interval keeps its moments.
      coalesce(w.last - ceil(extract(epoch from w.last - moment) / w.every) * make_interval(secs => w.every), moment) as since
    from faultline.schedules s
    cross join lateral (
      select greatest(s.since, s.last_at) as last, (s.spec ->> 'every')::double precision as every
    ) w
    where s.ended_at is null
      -- After a failure it is looked at again within minutes.
      and (greatest(s.since, s.last_at) > moment + interval '1 minute' or s.look_at > greatest(s.next_at, moment) + interval '10 minutes')
    order by s.id
    for update of s skip locked
  loop
    update faultline.schedules s
    set next_at = case when not one.is_ahead then s.next_at end,
        since = case when one.is_ahead then one.since else s.since end,
        last_at = case when one.is_ahead then (
          select max(k.at) from faultline.ticks k where k.schedule_id = s.id and k.kind = 'tick' and k.at <= moment
        ) else s.last_at end,
        look_at = case when s.paused_at is null then moment end,
        revision = s.revision + 1
    where s.id = one.id;
    perform faultline.schedule_changed(
      one.name, json_build_object('last_at', one.last_at), json_build_object('since', case when one.is_ahead then one.since end),
      faultline.signature('faultline', 'the clock of the database was ahead')
    );
  end loop;
end
$$;
