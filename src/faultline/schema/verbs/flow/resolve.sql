-- Look at up to `max_nudges` nudges: wake suspended jobs that can go on, and cancel those that come after a job that has
-- ended badly. Returns how many were woken; how many nudges are left that are worth asking for soon; and the next `cursor`.
-- Never waits for a lock: whoever holds the row of a waiting job delays that job only. All nudges of such a job become one,
-- which is looked at again after a pause that doubles each time, up to 5 seconds.
--
-- `cursor` is what the last call of this caller returned, null at first. It names the transactions whose nudges that call
-- could not see, and the nudges that it saw and left. So a call finds what was committed late, which a bound by number
-- would miss, and does not read the dead rows that vacuum cannot remove while a session holds an old snapshot.
--
-- A nudge is gone only after a look, by a transaction that had locked the row of its job before it looked.
create or replace function faultline.resolve(
  max_nudges integer default 100,
  cursor jsonb default null
) returns table (
  woken integer,
  left_over integer,
  next_cursor jsonb
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set jit = off
set max_parallel_workers_per_gather = 0
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  most constant integer := least(greatest(coalesce(resolve.max_nudges, 0), 1), 1000);
  at constant timestamptz := faultline.clock();
  run constant text := faultline.server_run();
  -- Taken before the nudges are read: what it does not see, the next call looks for.
  seen constant pg_snapshot := pg_current_snapshot();
  lower_bound xid8 := '0';
  upper_bound xid8;
  under_way xid8[] := '{}';
  -- Nudges that were seen and left: by the last call, and then by this one.
  kept bigint[] := '{}';
  -- Nudges that this call looks at. All arrays below are of these.
  chosen bigint[];
  looked bigint[] := '{}';
  held bigint[] := '{}';
  awake uuid[] := '{}';
  awake_nudges bigint[] := '{}';
  awake_jobs uuid[] := '{}';
  to_wake uuid[] := '{}';
  nudge record;
  job record;
  verdict record;
  batch record;
begin
  perform faultline.read_committed('resolve');
  woken := 0;
  left_over := 0;
  -- On another run of the server the numbers mean nothing: after a failover that lost commits, they are used again.
  if resolve.cursor ->> 'run' = run and (resolve.cursor ->> 'xmax')::xid8 <= pg_snapshot_xmax(seen) then
    lower_bound := (resolve.cursor ->> 'xmax')::xid8;
    under_way := array(select u.xid::xid8 from jsonb_array_elements_text(resolve.cursor -> 'open') as u (xid));
    kept := array(select u.id::bigint from jsonb_array_elements_text(resolve.cursor -> 'kept') as u (id));
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
  if cardinality(chosen) > 0 then
    perform faultline.require_synchronous_commit();
    perform faultline.set_current_verb('resolve');
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
        left_over := left_over + 1;
      elsif verdict.over then
        update faultline.open_jobs j
        set next_run_at = least(j.next_run_at, faultline.clock()), suspended = null
        where j.id = job.id;
        to_wake := to_wake || job.id;
      end if;
    end loop;
    -- Nudges that another session has locked: it may die before it commits.
    kept := kept || array(select c.id from unnest(chosen) as c (id) except select l.id from unnest(looked) as l (id));
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
    if cardinality(held) > 0 then
      with merged as (
        select min(n.id) as id, max(n.kind) as kind from faultline.nudges n where n.id = any (held) group by n.job_id
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
      select array_agg(p.id) as ids, count(*) filter (where p.looks <= 4) as soon into batch from paused p;
      kept := kept || batch.ids;
      left_over := left_over + batch.soon;
      looked := array(select l.id from unnest(looked) as l (id) except select p.id from unnest(batch.ids) as p (id));
    end if;
    delete from faultline.nudges n where n.id = any (looked);
    perform faultline.set_current_verb('');
    woken := cardinality(to_wake);
    if woken > 0 then
      perform faultline.wake_for(to_wake);
    end if;
  end if;
  -- Too many rows are held: begin at the start again, rather than carry them all about.
  next_cursor := case when cardinality(kept) <= 10000 then jsonb_build_object(
    'run', run, 'xmax', upper_bound::text, 'open', to_jsonb(under_way::text[]), 'kept', to_jsonb(kept)
  ) end;
  return next;
end
$$;
