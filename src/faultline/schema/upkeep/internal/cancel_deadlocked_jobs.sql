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
