-- Nudge up to `max_jobs` suspended jobs whose wait seems to be over, and that have no nudge. Only foreign SQL, or a restore
-- of some tables, makes it necessary. Reads every awaited call.
create or replace function faultline.wake_overslept(max_jobs integer) returns void
language plpgsql volatile
set plan_cache_mode = force_custom_plan
as $$
#variable_conflict use_column
begin
  insert into faultline.nudges (job_id, kind)
  select distinct c.job_id, 1
  from faultline.calls c
  join faultline.open_jobs j on j.id = c.job_id
  where c.awaited
    and c.ended_at is null
    and j.state = 'queued'
    and j.suspended
    and case
      when c.kind = 'signal' then faultline.kept_signal(c.job_id, c.name, c.number, c.fresh, c.begun_at) is not null
      when c.kind in ('children', 'watch', 'after') then faultline.open_child(c.id, 2147483647) is null
      else false
    end
    and not exists (select from faultline.nudges n where n.job_id = c.job_id)
  limit wake_overslept.max_jobs;
end
$$;
