-- The calls that the program gave up when one of these failed: it waited for them together. What lost a race is not among
-- them: that is decided, whatever becomes of the winner.
create or replace function faultline.closed_with(job_id uuid, stopped bigint[]) returns bigint[]
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  return array(
    select c.id
    from faultline.calls c
    where c.job_id = closed_with.job_id and c.outcome = 'closed' and c.number !~ '^0[.]0([.]|$)'
      and c.ended_moment = any (array(
        -- They are recorded with what the program called next.
        select min(d.ended_moment)
        from faultline.calls s
        join faultline.calls d on d.job_id = s.job_id and d.outcome = 'closed' and d.ended_moment > s.ended_moment
        where s.id = any (closed_with.stopped)
          and not exists (
            select from faultline.calls r where r.job_id = d.job_id and r.kind = 'race' and r.ended_moment = d.ended_moment
          )
        group by s.id
      ))
  );
end
$$;
