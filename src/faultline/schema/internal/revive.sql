-- Retry whole flows: which jobs start over with these, and open the calls at which these stopped.
-- Before: the caller has locked the rows of failed and cancelled jobs. After: all rows of the answer are locked. A sweep of
-- one of them ends by itself: it looks at the state.
--   children that were cancelled because their parent had ended
--   children that failed, of a parent that failed; not those of a parent that was cancelled
--   jobs of a graph that were cancelled because a job that they come after had ended badly
-- Of calls that are history, all stay as they are. A wait for a signal that is opened gets a new time, and what it had received is
-- not received again: received_by then names the attempt too.
--
-- Rows of children are locked before their calls are: a retry of a child locks its row, then its parent's call.
create or replace function faultline.revive(job_ids uuid[]) returns uuid[]
language plpgsql volatile
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  all_ids uuid[] := revive.job_ids;
  level uuid[] := revive.job_ids;
  stopped bigint[] := '{}';
begin
  while cardinality(level) > 0 loop
    stopped := stopped || array(
      select unnest(faultline.stopped_at(l.id))
      from unnest(level) as l (id)
      -- By id only, here and below: with the state in the inner query, the planner may scan all jobs of that state.
      cross join lateral (select j.state, j.flow_id from faultline.open_jobs j where j.id = l.id offset 0) j
      where j.state = 'failed' and j.flow_id is not null
    );
    level := array(
      select j.id
      from faultline.open_jobs j
      where j.id = any (array(
          select k.id
          from unnest(level) as l (id)
          cross join lateral (select j.state from faultline.open_jobs j where j.id = l.id offset 0) p
          cross join lateral (select * from faultline.calls c where c.job_id = l.id and c.kind = 'children' offset 0) c
          cross join lateral (select e.job_id from faultline.edges e where e.call_id = c.id offset 0) e
          cross join lateral (select * from faultline.open_jobs j where j.id = e.job_id offset 0) k
          where k.call_id = c.id
            and (c.ended_at is null or c.id = any (stopped))
            and (
              k.state = 'cancelled' and k.last_error in (faultline.swept_error(), faultline.unreached_error())
              or k.state = 'failed' and p.state = 'failed'
            )
          union
          select k.id
          from unnest(level) as l (id)
          cross join lateral (select e.call_id from faultline.edges e where e.job_id = l.id offset 0) e
          cross join lateral (select * from faultline.calls c where c.id = e.call_id offset 0) c
          cross join lateral (select * from faultline.open_jobs j where j.id = c.job_id offset 0) k
          where c.kind = 'after' and c.ended_at is null and k.state = 'cancelled' and k.last_error = faultline.unreached_error()
        ))
        and j.id <> all (all_ids)
      order by j.id
      for update
    );
    -- Look again after the lock: another session may have retried one.
    level := array(
      select l.id
      from unnest(level) as l (id)
      cross join lateral (select j.state from faultline.open_jobs j where j.id = l.id offset 0) j
      where j.state in ('failed', 'cancelled')
    );
    all_ids := all_ids || level;
  end loop;
  perform faultline.as_verb('retry');
  update faultline.signals s
  set received_by = c.fencing_token || '/' || c.number
  from faultline.calls c
  where c.id = any (stopped) and c.kind = 'signal' and s.job_id = c.job_id and s.received_by = c.number;
  update faultline.calls c
  set ended_at = null, outcome = null, result = null, error = null, awaited = false, open_index = null,
      until = case when c.kind <> 'signal' then c.until end
  where c.id = any (stopped);
  perform faultline.as_verb('');
  return all_ids;
end
$$;
