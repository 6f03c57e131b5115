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
