-- Retry ended jobs: what is refused, what is kept, and what runs again.

-- Why this job cannot be retried by itself, or null. Before: the caller has locked its flow, and then its row.
-- `is_busy`: another session ends the call of its parent now; ask again.
--
-- A child counts for its parent, so it only runs while its parent can still see how it ends: not after the parent has
-- ended, and not after the parent has gone on past the call, since the result of a call is history.
create or replace function faultline.why_not_retried(job_id uuid, out reason text, out is_busy boolean)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  child record;
  saga text;
  call record;
  parent record;
begin
  is_busy := false;
  select j.id, j.call_id, j.flow_id into child from faultline.open_jobs j where j.id = why_not_retried.job_id;
  if child.flow_id is null then
    return;
  end if;
  if exists (select from faultline.flows f where f.id = child.flow_id and f.pruning) then
    reason := format('job %s belongs to a flow that is being deleted, since its retention time is over', child.id);
    return;
  end if;
  saga := faultline.undone_saga(child.id);
  if child.call_id is null then
    reason := case when saga is not null then format('job %s cannot be retried: the saga of call %s was undone; fork it before call %s', child.id, saga, saga) end;
    return;
  end if;
  select c.job_id, c.ended_at into call from faultline.calls c where c.id = child.call_id for share skip locked;
  if not found then
    is_busy := exists (select from faultline.calls c where c.id = child.call_id);
    if is_busy then
      reason := format('the parent of job %s looks at its children now; try again', child.id);
    end if;
    return;
  end if;
  select j.state into parent from faultline.open_jobs j where j.id = call.job_id;
  reason := case
    when not found then format('job %s is a child of job %s, which has ended; enqueue a new job', child.id, call.job_id)
    when parent.state in ('failed', 'cancelled') then
      format('job %s is a child of job %s, which is %s; retry that job instead: what has succeeded is kept', child.id, call.job_id, parent.state)
    when call.ended_at is not null then
      format('job %s is a child of job %s, which has gone on; fork that job instead', child.id, call.job_id)
    when saga is not null then
      format('job %s cannot be retried: the saga of call %s was undone; fork it before call %s', child.id, saga, saga)
  end;
end
$$;

-- Raise FL002 if this job cannot start over with its parent: its saga was undone, and it would fail at once. Raise 55P03 while it is
-- being undone: it ends as it had ended, and so would its parent. Before: the caller has locked its row.
create or replace function faultline.refuse_reopening(job_id uuid) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  saga constant text := faultline.undone_saga(refuse_reopening.job_id);
  parent record;
begin
  if saga is null and not (
    (select j.state from faultline.open_jobs j where j.id = refuse_reopening.job_id) in ('queued', 'running')
    and exists (
      select from faultline.calls c where c.job_id = refuse_reopening.job_id and c.kind = 'saga' and c.outcome = 'failed'
    )
  ) then
    return;
  end if;
  select c.job_id, c.number into parent
  from faultline.open_jobs j
  join faultline.calls c on c.id = j.call_id
  where j.id = refuse_reopening.job_id;
  if saga is null then
    raise exception 'job % cannot be retried yet: its child % is being undone', parent.job_id, refuse_reopening.job_id
      using errcode = '55P03', hint = 'try again when that has ended';
  end if;
  raise exception 'job % cannot be retried: the saga of its child %, call %, was undone', parent.job_id, refuse_reopening.job_id, saga
    using errcode = 'FL002', hint = case parent.number
      when '0' then 'enqueue the graph again' else format('fork it before call %s: it calls its children anew', parent.number)
    end;
end
$$;

-- Raise FL002 if this job of a graph, which comes after one that is retried, cannot run again: it runs now, with the failure
-- of that one; or it has succeeded, and its arguments were not kept.
create or replace function faultline.refuse_behind(job_id uuid) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  job record;
begin
  select j.state, j.suspended, c.awaited, c.ended_at into job
  from faultline.open_jobs j
  join faultline.calls c on c.job_id = j.id and c.number = '0' and c.kind = 'after'
  where j.id = refuse_behind.job_id;
  if not found then
    if exists (select from faultline.ledger f where f.job_id = refuse_behind.job_id and f.args is null) then
      raise exception 'job % comes after a job that would be retried, has succeeded with its failure, and cannot run again: its arguments were not kept',
        refuse_behind.job_id
        using errcode = 'FL002', hint = 'enqueue the graph again';
    end if;
  elsif job.state in ('queued', 'running') and not (coalesce(job.suspended, false) and job.awaited and job.ended_at is null) then
    raise exception 'job % comes after a job that would be retried, and runs now with its failure', refuse_behind.job_id
      using errcode = 'FL002', hint = 'cancel it, or retry when it has ended';
  end if;
end
$$;

-- Queue failed and cancelled jobs again. Before: the caller has locked their rows and checked their states.
-- After: queued, due now, with attempts counted from zero. The token stays, so that writes of earlier workers are refused.
-- Of a flow, other jobs start over with them: see revive. A job of a graph waits again for the jobs that it comes after.
-- Of those with one unique key the newest takes the key, unless another job waits under it; the others are superseded.
-- `signed` says who did it and why (see `signature`).
create or replace function faultline.requeue_ended_jobs(job_ids uuid[], signed jsonb default '{}') returns void
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  ids uuid[] := requeue_ended_jobs.job_ids;
  waiting uuid[];
  unique_ids uuid[];
begin
  if exists (select from faultline.open_jobs j where j.id = any (ids) and j.flow_id is not null) then
    ids := faultline.reopen_flows(ids);
    waiting := array(
      select distinct c.job_id from faultline.calls c where c.job_id = any (ids) and c.kind = 'after' and c.ended_at is null
    );
    update faultline.calls c set awaited = c.kind = 'after' where c.job_id = any (waiting) and c.ended_at is null;
  end if;
  with ended as materialized (
    -- The others are new, and wait.
    select j.id, j.state from faultline.open_jobs j where j.id = any (ids) and j.state in ('failed', 'cancelled')
  ),
  again as (
    update faultline.open_jobs j
    set state = 'queued',
        next_run_at = case when e.id = any (waiting) then '9999-01-01Z' else faultline.clock() end,
        suspended = case when e.id = any (waiting) then true end,
        attempt = 0,
        reaps = 0,
        started = false,
        finished_at = null,
        last_error = null,
        stopped_by = null,
        -- A person wants it to run, however late.
        expires_at = case when j.expires_at > faultline.clock() then j.expires_at end
    from ended e
    -- Looked up one by one, as in `complete`.
    where j.id = any (array[e.id])
    returning j.id, j.fencing_token, e.state as was
  )
  insert into faultline.journal (at, job_id, event, fencing_token, detail)
  select faultline.clock(), a.id, 'retried', a.fencing_token, jsonb_build_object('was', a.was) || requeue_ended_jobs.signed
  from again a;
  unique_ids := array(
    select j.id from faultline.open_jobs j where j.id = any (ids) and j.unique_key is not null and j.flow_id is null
  );
  if cardinality(unique_ids) > 0 then
    perform faultline.reclaim_unique_keys(unique_ids);
    perform faultline.supersede(unique_ids);
  end if;
  if cardinality(waiting) > 0 then
    insert into faultline.nudges (job_id, kind) select w.id, 1 from unnest(waiting) as w (id);
    perform faultline.wake_resolvers();
  end if;
  perform faultline.wake_for(ids);
end
$$;

-- Give jobs that are queued again the unique keys that they had, so that submissions are answered with them. Before: the caller
-- has queued them. A key under which another job waits stays with it; of several jobs with one key, the newest gets it.
-- The caller has their rows, and keys come before rows: so a key that a submission holds is left to it.
create or replace function faultline.reclaim_unique_keys(job_ids uuid[]) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  job record;
  held uuid;
begin
  for job in
    select distinct on (j.queue, j.unique_key, j.task) j.id, j.queue, j.unique_key, j.task, j.created_at
    from faultline.open_jobs j
    where j.id = any (reclaim_unique_keys.job_ids)
    order by j.queue, j.unique_key, j.task, j.created_at desc, j.id desc
  loop
    insert into faultline.unique_keys (queue, key, task, job_id, at)
    select job.queue, job.unique_key, job.task, job.id, job.created_at
    -- Looked for first: to meet it, the insert would wait for who holds it.
    where not exists (
      select from faultline.unique_keys k where k.queue = job.queue and k.key = job.unique_key and k.task = job.task
    )
    on conflict do nothing;
    select k.job_id into held
    from faultline.unique_keys k
    where k.queue = job.queue and k.key = job.unique_key and k.task = job.task
    for update skip locked;
    -- In a statement of its own, after the lock.
    update faultline.unique_keys k
    set job_id = job.id
    where held <> job.id
      and k.queue = job.queue and k.key = job.unique_key and k.task = job.task and k.job_id = held
      and not exists (
        select from faultline.open_jobs o where o.id = held and coalesce(o.state, '') = 'queued'
      );
  end loop;
end
$$;

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

-- Retry one failed job of a flow, unless something keeps it from being retried. Returns whether it is open again: it may be so
-- already, started over with another job. Before: the caller has locked its flow, and then its row.
create or replace function faultline.retry_job_of_flow(job_id uuid, signed jsonb) returns boolean
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  if not exists (select from faultline.open_jobs j where j.id = retry_job_of_flow.job_id and j.state = 'failed') then
    return true;
  elsif (select w.reason from faultline.why_not_retried(retry_job_of_flow.job_id) w) is not null then
    return false;
  end if;
  perform faultline.requeue_ended_jobs(array[retry_job_of_flow.job_id], signed);
  return true;
exception
  when sqlstate 'FL002' or lock_not_available then
    return false;
end
$$;

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

-- Have jobs of a graph look again at what they come after. Before: `faultline.verb` is retry, their rows are locked, and they
-- have ended badly. One that had looked begins without its history: what it called depends on what it saw.
create or replace function faultline.forget_upstream(job_ids uuid[]) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  looked constant uuid[] := array(
    select c.job_id from faultline.calls c
    where c.job_id = any (forget_upstream.job_ids) and c.kind = 'after' and c.ended_at is not null
  );
begin
  perform faultline.forget_calls(array(
    select c.id from faultline.calls c
    where c.job_id = any (looked) and c.kind <> 'after' and c.number !~ '^0[.]0([.]|$)'
  ));
  delete from faultline.steps s where s.job_id = any (looked);
  update faultline.calls c
  set ended_at = null, outcome = null, result = null, open_index = null
  where c.job_id = any (looked) and c.kind = 'after';
end
$$;

-- Enqueue a new job in the place of each of these jobs of a graph, which have succeeded. Returns the ids of the new ones.
-- Before: `faultline.verb` is retry, and the jobs that they come after start over. After: suspended until those have ended;
-- the root of the graph, and jobs that came after the old ones, wait for the new ones. The old ones stay as they are, once
-- in the ledger: they belong to the flow, under a call of its root that is over, and are pruned with it.
create or replace function faultline.stand_in(job_ids uuid[]) returns uuid[]
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  at constant timestamptz := faultline.clock();
  -- Not those for which an earlier retry has made one: they belong to the flow under a call that is over.
  olds constant uuid[] := array(
    select o.id
    from unnest(stand_in.job_ids) as o (id)
    where exists (
      select from faultline.edges e
      join faultline.calls c on c.id = e.call_id and c.kind = 'children' and c.number = '0'
      where e.job_id = o.id
    )
    order by o.id
  );
  news constant uuid[] := array(select faultline.new_id(1) from unnest(olds));
  root record;
begin
  if cardinality(olds) = 0 then
    return '{}';
  end if;
  insert into faultline.open_jobs (
    id, task, args, queue, priority, next_run_at, max_attempts, lease_seconds, keep_args, created_at, group_key, flow_id, call_id, watched, suspended
  )
  select
    n.new, f.task, f.args, f.queue, f.priority, '9999-01-01Z', f.max_attempts,
    -- The ledger does not know the lease of a job, as for a fork of it.
    30, true, at, f.group_key, f.flow_id, m.call_id,
    case when exists (
      select from faultline.edges e join faultline.calls c on c.id = e.call_id where e.job_id = n.old and c.kind = 'after'
    ) then true end,
    true
  from unnest(olds, news) as n (old, new)
  join faultline.ledger f on f.job_id = any (array[n.old])
  cross join lateral (
    select e.call_id from faultline.edges e
    join faultline.calls c on c.id = e.call_id and c.kind = 'children' and c.number = '0'
    where e.job_id = n.old
    limit 1
  ) m;
  with comes as (
    insert into faultline.calls (job_id, number, kind, name, fencing_token, begun_at, awaited, policy, total, spawned)
    select n.new, '0', 'after', c.name, 0, at, true, c.policy, c.total, c.spawned
    from unnest(olds, news) as n (old, new)
    join faultline.calls c on c.job_id = n.old and c.kind = 'after'
    returning id, job_id
  )
  insert into faultline.edges (call_id, index, job_id)
  select k.id, e.index, coalesce(u.new, e.job_id)
  from comes k
  join unnest(olds, news) as n (old, new) on n.new = k.job_id
  join faultline.calls c on c.job_id = n.old and c.kind = 'after'
  join faultline.edges e on e.call_id = c.id
  left join unnest(olds, news) as u (old, new) on u.old = e.job_id;
  -- The old ones belong to a call that is over; the root, and open jobs that came after them, get the new ones.
  for root in
    select distinct c.job_id, c.id
    from faultline.edges e join faultline.calls c on c.id = e.call_id and c.kind = 'children' and c.number = '0'
    where e.job_id = any (olds)
  loop
    with call as (
      insert into faultline.calls (id, job_id, number, kind, name, fencing_token, begun_at, ended_at, outcome)
      overriding system value
      -- Under a number that no other retry of this moment takes.
      select n.id, root.job_id, '0.0.' || n.id, 'children', 'replaced', 0, at, at, 'closed'
      from nextval(pg_get_serial_sequence('faultline.calls', 'id')) as n (id)
      returning id
    )
    insert into faultline.edges (call_id, index, job_id)
    select k.id, row_number() over (order by e.index) - 1, e.job_id
    from call k cross join faultline.edges e
    where e.call_id = root.id and e.job_id = any (olds);
  end loop;
  with moved as (
    delete from faultline.edges e
    using faultline.calls c
    where e.job_id = any (olds) and c.id = e.call_id
      and (
        c.kind = 'children' and c.number = '0'
        or c.kind = 'after' and exists (select from faultline.open_jobs j where j.id = c.job_id)
      )
    returning e.call_id, e.index, e.job_id
  )
  insert into faultline.edges (call_id, index, job_id)
  select m.call_id, m.index, n.new from moved m join unnest(olds, news) as n (old, new) on n.old = m.job_id;
  insert into faultline.journal (at, job_id, event, fencing_token, detail)
  select at, j.id, 'forked', j.token, jsonb_build_object(j.way, j.other, 'reason', 'a job that it comes after was retried')
  from unnest(olds, news) as n (old, new)
  join faultline.ledger f on f.job_id = any (array[n.old])
  cross join lateral (values (n.old, f.fencing_token, 'into', n.new), (n.new, 0, 'from', n.old)) as j (id, token, way, other);
  return news;
end
$$;
