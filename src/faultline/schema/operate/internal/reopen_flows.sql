-- Retry whole flows: which jobs start over with these, and open the calls at which these stopped. Returns the jobs that start
-- over, and new ones that stand in for some that had succeeded.
-- Before: the caller has locked the rows of failed and cancelled jobs. After: all rows of the answer are locked. A sweep of
-- one of them ends by itself: it looks at the state.
--   Of a job that starts over, the calls that ended it are opened: see open_again. All other history stays.
--   Its children of calls that are open now start over, unless they have succeeded, however they ended.
--   Jobs of a graph that come after a job that starts over do so too. One that had succeeded was made from what that job was
--   then: a new job stands in for it, see stand_in. One that had ended badly begins without its history if it has looked.
-- FL002 where that cannot help: see below.
--
-- Rows of children are locked before their calls are: a retry of a child locks its row, then its parent's call.
create or replace function faultline.reopen_flows(job_ids uuid[]) returns uuid[]
language plpgsql volatile
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  all_ids uuid[] := reopen_flows.job_ids;
  level uuid[] := reopen_flows.job_ids;
  succeeded uuid[] := '{}';
  found uuid[];
  found_behind uuid[];
  job uuid;
begin
  perform faultline.set_current_verb('retry');
  while cardinality(level) > 0 loop
    foreach job in array level loop
      if job <> all (succeeded) then
        perform faultline.open_again(job);
      end if;
    end loop;
    found_behind := array(
      select distinct c.job_id
      from unnest(level) as l (id)
      cross join lateral (select e.call_id from faultline.edges e where e.job_id = l.id offset 0) e
      cross join lateral (select * from faultline.calls c where c.id = e.call_id offset 0) c
      where c.kind = 'after' and c.job_id <> all (all_ids) and c.job_id <> all (succeeded)
    );
    -- By id only, here and below: with the state in the inner query, the planner may scan all jobs of that state.
    found := array(
      select k.id
      from unnest(level) as l (id)
      cross join lateral (select * from faultline.calls c where c.job_id = l.id and c.kind = 'children' offset 0) c
      cross join lateral (select e.job_id from faultline.edges e where e.call_id = c.id offset 0) e
      cross join lateral (select * from faultline.open_jobs j where j.id = e.job_id offset 0) k
      where k.call_id = c.id and c.ended_at is null and l.id <> all (succeeded)
    );
    level := array(
      select j.id
      from faultline.open_jobs j
      where j.id = any (found || found_behind) and j.id <> all (all_ids)
      order by j.id
      for update
    );
    perform faultline.refuse_reopening(l.id) from unnest(level) as l (id);
    -- Look again after the lock: another session may have retried one.
    level := array(
      select l.id
      from unnest(level) as l (id)
      cross join lateral (select j.state from faultline.open_jobs j where j.id = l.id offset 0) j
      where j.state in ('failed', 'cancelled')
    );
    perform faultline.refuse_behind(b.id) from unnest(found_behind) as b (id) where b.id <> all (level);
    all_ids := all_ids || level;
    found := array(
      select f.job_id from unnest(found_behind) as b (id) join faultline.ledger f on f.job_id = any (array[b.id])
    );
    succeeded := succeeded || found;
    level := level || found;
  end loop;
  perform faultline.forget_upstream(array(
    select distinct c.job_id
    from unnest(all_ids || succeeded) as l (id)
    cross join lateral (select e.call_id from faultline.edges e where e.job_id = l.id offset 0) e
    cross join lateral (select c.job_id, c.kind from faultline.calls c where c.id = e.call_id offset 0) c
    where c.kind = 'after' and c.job_id = any (all_ids)
  ));
  -- Children of what was forgotten stay as they ended, with all that is below them: the job calls new ones.
  all_ids := array(
    with recursive left_behind as (
      select j.id
      from unnest(all_ids) as a (id)
      cross join lateral (select j.id, j.call_id from faultline.open_jobs j where j.id = a.id offset 0) j
      cross join lateral (select c.number, c.outcome from faultline.calls c where c.id = j.call_id offset 0) c
      where c.outcome = 'closed' and c.number ~ '^0[.]0[.]'
      union
      select e.job_id
      from left_behind l
      cross join lateral (select c.id from faultline.calls c where c.job_id = l.id and c.kind = 'children' offset 0) c
      cross join lateral (select e.job_id from faultline.edges e where e.call_id = c.id offset 0) e
      where e.job_id = any (all_ids)
    )
    select a.id from unnest(all_ids) as a (id) where a.id not in (select l.id from left_behind l)
  );
  all_ids := all_ids || faultline.stand_in(succeeded);
  perform faultline.set_current_verb('');
  return all_ids;
end
$$;
