-- Open the calls again that ended this job, and what was closed with them. Returns their ids. Before: the caller has locked
-- the row of the job, which has failed or was cancelled; `faultline.verb` is retry.
-- After: it waits for those jobs and signals anew, and runs those steps anew. What it had called after that is doubtful: it
-- is kept if the program makes the same call again, and forgotten if it makes another one. A wait for a signal gets a new time.
create or replace function faultline.open_again(job_id uuid) returns bigint[]
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  stopped constant bigint[] := faultline.stopped_at(open_again.job_id);
  closed constant bigint[] := faultline.closed_with(open_again.job_id, stopped);
  begun bigint[];
begin
  update faultline.calls c
  set doubtful = true
  where c.job_id = open_again.job_id
    and c.id > (select min(s.ended_moment) from faultline.calls s where s.id = any (stopped))
    and c.id <> all (stopped)
    and c.kind <> 'after'
    and c.number !~ '^0[.]0([.]|$)';
  -- The program is inside of a saga again that it had left after one of these.
  update faultline.calls c
  set ended_at = null, ended_moment = null, outcome = null
  where c.job_id = open_again.job_id
    and c.kind = 'saga'
    and c.outcome = 'done'
    and exists (
      select from faultline.calls s
      where s.id = any (stopped)
        and s.id > c.id
        and s.ended_moment <= c.ended_moment
        and starts_with(s.number, regexp_replace(c.number, '[0-9]+$', ''))
    );
  -- One that was recorded only when it was closed had not begun.
  begun := array(
    select c.id
    from faultline.calls c
    where c.id = any (stopped || closed)
      and c.kind in ('children', 'watch', 'signal', 'sleep')
      and (c.outcome <> 'closed' or c.id < c.ended_moment)
  );
  update faultline.signals s
  set received_by = c.fencing_token || '/' || c.number
  from faultline.calls c
  where c.id = any (begun) and c.kind = 'signal' and s.job_id = c.job_id and s.received_by = c.number;
  update faultline.calls c
  set ended_at = null, ended_moment = null, outcome = null, result = null, error = null, awaited = false, open_index = null,
      until = case when c.kind <> 'signal' or c.outcome = 'closed' then c.until end
  where c.id = any (begun);
  perform faultline.forget_calls(array(
    select c.id
    from faultline.calls c
    where c.job_id = open_again.job_id
      and (
        c.id = any (stopped || closed) and c.id <> all (begun)
        -- The pauses between the tries of a step that runs anew.
        or c.kind = 'retry' and exists (
          select from faultline.calls s
          where s.id = any (stopped) and s.kind in ('step', 'atomic') and starts_with(c.number, s.number || '.')
        )
      )
  ));
  return begun;
end
$$;
