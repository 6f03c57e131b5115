-- Nudges: that a waiting job should be looked at.

-- Leave a nudge for each job that waits for the end of these: `call_ids` are in the rows of the ended jobs, `watched` are
-- those that further calls wait for. `failed`: they ended badly, so look for failures too.
--
-- Inserts only, so that no completion waits for a parent. Whether the waiter is suspended is not looked at: it may be
-- about to be, in a transaction that does not see this end.
create or replace function faultline.nudge_waiters(call_ids bigint[], watched uuid[], failed boolean default false)
returns void
language plpgsql volatile
set plan_cache_mode = force_generic_plan
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
begin
  insert into faultline.nudges (job_id, kind)
  select distinct c.job_id, nudge_waiters.failed::integer
  from (
    select u.id from unnest(nudge_waiters.call_ids) as u (id)
    union
    select e.call_id
    from unnest(nudge_waiters.watched) as w (job_id)
    cross join lateral (select e.call_id from faultline.edges e where e.job_id = w.job_id offset 0) e
  ) u
  -- One by one: the planner may take a table for empty, and read all of it first.
  cross join lateral (select c.job_id from faultline.calls c where c.id = u.id offset 0) c;
end
$$;

-- Tell workers that there is something to resolve or to sweep. Only a hint: they look once a second anyway.
create or replace function faultline.wake_resolvers() returns void
language sql volatile
as $$
  select pg_notify('faultline', '{"nudge": true}')
  where coalesce(current_setting('faultline.notify', true), '') <> 'off';
$$;

-- Have the ends of these jobs told to those who wait for them, by `edges`. Before: the edges are written, and not committed.
-- Never waits: raises 55P03 if one of them is locked. It may be ending, and whoever ends it has not seen the mark.
-- Its callers plan for full tables.
create or replace function faultline.set_watched(job_ids uuid[]) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  locked uuid;
begin
  with free as materialized (
    select j.ctid
    from (select distinct u.id from unnest(set_watched.job_ids) as u (id)) w
    -- Looked up one by one, as in `complete`.
    join faultline.open_jobs j on j.id = any (array[w.id])
    where j.watched is not true
    for update of j skip locked
  )
  update faultline.open_jobs j set watched = true
  from free
  where j.ctid = free.ctid;
  -- In a new statement: one that has ended meanwhile is gone.
  select j.id into locked
  from unnest(set_watched.job_ids) as u (id)
  join faultline.open_jobs j on j.id = any (array[u.id])
  where j.watched is not true
  limit 1;
  if found then
    raise exception 'job % is locked and cannot be waited for at this moment', locked
      using errcode = 'lock_not_available', hint = 'Nothing was written; send this again in a moment.';
  end if;
end
$$;

-- The nudges that a call of `resolve` looks at, up to `most`, and those that it leaves for the next one (`kept`): paused ones, and
-- those that are too many. `left_over` counts the latter. For `cursor` see `resolve`; the next one still lacks what is kept.
create or replace function faultline.read_nudges(
  cursor jsonb, most integer, out chosen bigint[], out kept bigint[], out left_over integer, out next_cursor jsonb
)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  at constant timestamptz := faultline.clock();
  run constant text := faultline.server_run();
  -- Taken before the nudges are read: what it does not see, the next call looks for.
  seen constant pg_snapshot := pg_current_snapshot();
  lower_bound xid8 := '0';
  upper_bound xid8;
  under_way xid8[] := '{}';
  batch record;
begin
  kept := '{}';
  -- On another run of the server the numbers mean nothing: after a failover that lost commits, they are used again.
  if read_nudges.cursor ->> 'run' = run and (read_nudges.cursor ->> 'xmax')::xid8 <= pg_snapshot_xmax(seen) then
    lower_bound := (read_nudges.cursor ->> 'xmax')::xid8;
    under_way := array(select u.xid::xid8 from jsonb_array_elements_text(read_nudges.cursor -> 'open') as u (xid));
    kept := array(select u.id::bigint from jsonb_array_elements_text(read_nudges.cursor -> 'kept') as u (id));
  end if;
  with late as materialized (
    select n.id, n.xid, n.not_before
    from faultline.nudges n
    where n.xid = any (under_way) and n.id <> all (kept)
    limit most
  ),
  new as materialized (
    select n.id, n.xid, n.not_before
    from faultline.nudges n
    where n.xid >= lower_bound and n.id <> all (kept)
    order by n.xid, n.id
    limit most
  ),
  there as (
    select n.id, n.not_before from faultline.nudges n where n.id = any (kept)
    union
    select l.id, l.not_before from late l
    union
    select n.id, n.not_before from new n
  )
  select
    array_agg(t.id order by t.id) filter (where t.not_before is null or t.not_before <= at) as due,
    array_agg(t.id) filter (where t.not_before > at) as paused,
    (select count(*) from late) >= most as more_late,
    (select n.xid from new n order by n.xid, n.id offset most - 1) as last_xid
  into batch
  from there t;
  -- Not above what was seen first: a transaction that began since may commit a nudge below the last one that was read.
  upper_bound := least(batch.last_xid, pg_snapshot_xmax(seen));
  under_way := case when batch.more_late then under_way else '{}' end
    || array(select x.xid from pg_snapshot_xip(seen) as x (xid) where x.xid < upper_bound);
  chosen := coalesce(batch.due[:most], '{}');
  kept := coalesce(batch.paused, '{}') || coalesce(batch.due[most + 1:], '{}');
  left_over := coalesce(cardinality(batch.due), 0) - cardinality(chosen)
    + (batch.more_late or batch.last_xid is not null)::integer;
  next_cursor := jsonb_build_object('run', run, 'xmax', upper_bound::text, 'open', to_jsonb(under_way::text[]));
end
$$;

-- Look at the jobs of these nudges, and wake those that can go on: their rows are locked before they are looked at. Those that come
-- after a job that has ended badly are cancelled.
-- `looked`: the nudges that no other session has locked. `held`: those of them that must be looked at again.
create or replace function faultline.apply_nudges(
  chosen bigint[], out looked bigint[], out held bigint[], out to_wake uuid[], out cancelled integer
)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  -- Jobs that do not wait; each of their nudges, and the job that it is for.
  awake uuid[] := '{}';
  awake_nudges bigint[] := '{}';
  awake_jobs uuid[] := '{}';
  nudge record;
  job record;
  verdict record;
  batch record;
begin
  looked := '{}';
  held := '{}';
  to_wake := '{}';
  cancelled := 0;
  for nudge in
    select l.job_id, bool_or(l.kind = 1) as failures, array_agg(l.id) as ids
    from (select n.id, n.job_id, n.kind from faultline.nudges n where n.id = any (chosen) for update skip locked) l
    group by l.job_id
    order by l.job_id
  loop
    looked := looked || nudge.ids;
    select j.state, j.suspended into job from faultline.open_jobs j where j.id = nudge.job_id;
    if not found then
      continue;
    elsif job.state <> 'queued' or job.suspended is not true then
      -- It may be about to suspend, after a look that did not see the cause of this nudge: see below.
      awake := awake || nudge.job_id;
      awake_nudges := awake_nudges || nudge.ids;
      awake_jobs := awake_jobs || array_fill(nudge.job_id, array[cardinality(nudge.ids)]);
      continue;
    end if;
    select j.id, j.state, j.suspended, j.fencing_token, j.call_id, j.watched into job
    from faultline.open_jobs j
    where j.id = nudge.job_id
    for update skip locked;
    if not found then
      held := held || nudge.ids;
      continue;
    end if;
    continue when job.state <> 'queued' or job.suspended is not true;
    -- In a new statement, after the lock.
    verdict := faultline.can_resume(job.id, nudge.failures);
    if verdict.failed then
      perform faultline.cancel_waiting(job.id, faultline.unreached_error(), '{"reason": "upstream"}');
      cancelled := cancelled + 1;
    elsif verdict.over then
      update faultline.open_jobs j
      set next_run_at = least(j.next_run_at, faultline.clock()), suspended = null
      where j.id = job.id;
      to_wake := to_wake || job.id;
    end if;
  end loop;
  if cardinality(awake) > 0 then
    -- Last, because these jobs run: their workers get `busy` while this transaction holds their rows.
    select
      coalesce(array_agg(l.id) filter (where l.state = 'queued' and l.suspended), '{}') as asleep,
      coalesce(array_agg(l.id), '{}') as locked
    into batch
    from (
      select j.id, j.state, j.suspended from faultline.open_jobs j where j.id = any (awake) for update skip locked
    ) l;
    held := held || array(
      select a.nudge_id
      from unnest(awake_nudges, awake_jobs) as a (nudge_id, job_id)
      where a.job_id <> all (batch.locked) or a.job_id = any (batch.asleep)
    );
  end if;
end
$$;

-- Make one nudge of all of these that are for one job. It is looked at again after a pause that doubles each time, up to 5 seconds.
-- Returns those that are left, and how many of them are worth asking for soon.
create or replace function faultline.pause_nudges(held bigint[], out ids bigint[], out soon integer)
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  with merged as (
    select min(n.id) as id, max(n.kind) as kind from faultline.nudges n where n.id = any (pause_nudges.held) group by n.job_id
  ),
  paused as (
    update faultline.nudges n
    set not_before = faultline.clock() + make_interval(secs => least(0.05 * 2 ^ least(n.looks, 10), 5)),
        looks = n.looks + 1,
        kind = m.kind
    from merged m
    where n.id = any (array[m.id])
    returning n.id, n.looks
  )
  select array_agg(p.id), count(*) filter (where p.looks <= 4) into ids, soon from paused p;
end
$$;
