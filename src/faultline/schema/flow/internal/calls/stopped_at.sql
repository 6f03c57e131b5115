-- The calls whose failure ended this job: their jobs had failed, a step had, or a signal did not come in time or did not fit.
-- That is history which a retry opens again.
--   the error came out of the program, as it was or as the cause of another one: `stopped_by` of the job
--   or the program called nothing after it, in its branch or in one around it
-- Any other failure is one past which the program went, and stays. By the order of the records, never by the clock.
create or replace function faultline.stopped_at(job_id uuid) returns bigint[]
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  named constant text[] := (select j.stopped_by from faultline.open_jobs j where j.id = stopped_at.job_id);
begin
  return array(
    select c.id
    from faultline.calls c
    where c.job_id = stopped_at.job_id
      and case
        when c.kind = 'signal' then c.ended_at is not null and c.error is not null
        else c.kind in ('children', 'watch', 'step', 'atomic') and c.outcome = 'failed'
      end
      -- A job whose saga has failed only undoes: nothing of what is undone begins anew.
      and not exists (
        select from faultline.calls s where s.job_id = stopped_at.job_id and s.kind = 'saga' and s.outcome = 'failed'
      )
      and (
        coalesce(c.number = any (named), false)
        or c.kind not in ('step', 'atomic') and not exists (
          select
          from faultline.calls d
          where d.job_id = stopped_at.job_id
            and d.id > c.ended_moment
            -- That it had won a race is recorded after its end.
            and d.kind <> 'race'
            and starts_with(c.number, regexp_replace(d.number, '[0-9]+$', ''))
        )
      )
  );
end
$$;
