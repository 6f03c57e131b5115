-- The calls at which the program of this job stopped: their jobs had failed, or a signal did not come in time or did not fit.
-- That is history which a retry opens again.
-- A failure past which the program went on is not among them: after it, a call began in its branch or in one around it.
create or replace function faultline.stopped_at(job_id uuid) returns bigint[]
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  return array(
    select c.id
    from faultline.calls c
    where c.job_id = stopped_at.job_id
      and case
        when c.kind in ('children', 'watch') then c.outcome = 'failed'
        else c.kind = 'signal' and c.ended_at is not null and c.error is not null
      end
      and not exists (
        select
        from faultline.calls d
        where d.job_id = stopped_at.job_id
          and d.begun_at > c.ended_at
          and starts_with(c.number, regexp_replace(d.number, '[0-9]+$', ''))
      )
  );
end
$$;
