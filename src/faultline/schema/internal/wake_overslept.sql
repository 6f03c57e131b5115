-- Nudge up to `max_jobs` suspended jobs whose wait seems to be over, and that have no nudge. Only foreign SQL, or a restore
-- of some tables, makes it necessary. Reads every kept signal, and every awaited call that waits for jobs.
create or replace function faultline.wake_overslept(max_jobs integer) returns void
language plpgsql volatile
set plan_cache_mode = force_custom_plan
set jit = off
set enable_seqscan = off
as $$
#variable_conflict use_column
begin
  insert into faultline.nudges (job_id, kind)
  select distinct o.job_id, 1
  from (
    -- From the signals: a million jobs may wait for one, and few of them have any.
    select c.job_id
    from (select distinct s.job_id from faultline.signals s where s.received_by is null) s
    cross join lateral (
      select c.* from faultline.calls c where c.job_id = s.job_id and c.awaited and c.ended_at is null and c.kind = 'signal' offset 0
    ) c
    where faultline.kept_signal(c.job_id, c.name, c.number, c.fresh, c.begun_at) is not null
    union all
    select c.job_id
    from faultline.calls c
    where c.awaited
      and c.ended_at is null
      and c.kind in ('children', 'watch', 'after')
      and faultline.open_child(c.id, 2147483647) is null
  ) o
  cross join lateral (select j.state, j.suspended from faultline.open_jobs j where j.id = o.job_id offset 0) j
  where j.state = 'queued'
    and j.suspended
    and o.job_id not in (select n.job_id from faultline.nudges n)
  limit wake_overslept.max_jobs;
end
$$;
