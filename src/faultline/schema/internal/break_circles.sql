-- Cancel a job of each circle of suspended jobs that wait for each other: none of them could ever go on, and nobody would
-- know until their time is up. The others then go on, and see that it was cancelled. The youngest is cancelled.
-- A job that also waits for a signal, or for a time within the next hour, may go on by itself: it is left alone.
create or replace function faultline.break_circles() returns void
language plpgsql volatile
set plan_cache_mode = force_custom_plan
as $$
#variable_conflict use_column
declare
  job record;
begin
  for job in
    with recursive stuck as materialized (
      select j.id
      from faultline.open_jobs j
      where j.state = 'queued'
        and j.suspended
        and j.next_run_at > faultline.clock() + interval '1 hour'
        and not exists (
          select from faultline.calls c
          where c.job_id = j.id and c.awaited and c.ended_at is null and c.kind not in ('children', 'watch', 'after')
        )
    ),
    waits as materialized (
      select c.job_id as waiter, e.job_id as waited_for
      from stuck s
      join faultline.calls c on c.job_id = s.id and c.awaited and c.ended_at is null
      join faultline.edges e on e.call_id = c.id
      join stuck o on o.id = e.job_id
    ),
    walks as (
      select w.waiter as first, w.waited_for as last, 1 as length from waits w
      union
      select k.first, w.waited_for, k.length + 1
      from walks k
      join waits w on w.waiter = k.last
      where k.first <> k.last and k.length < 100
    ),
    circles as (
      select distinct k.first as id from walks k where k.first = k.last
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
      job.id, 'cancelled: it waited for a job that waited for it', jsonb_build_object('reason', 'circle')
    );
  end loop;
end
$$;
