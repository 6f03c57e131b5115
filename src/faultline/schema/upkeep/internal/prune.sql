-- Steps of prune: what is removed, oldest first.

-- Delete succeeded jobs of no flow that ended before `horizon`, with what is stored for them. Before: `faultline.verb` is prune, and the
-- caller plans for full tables. Returns how many, the highest token, and where their rows were.
create or replace function faultline.prune_ledger(
  horizon timestamptz, max_rows integer, out gone integer, out highest bigint, out ctids tid[]
)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  job_ids uuid[];
begin
  with old as (
    delete from faultline.ledger f
    where f.ctid = any (array(
      select o.ctid from faultline.ledger o
      where o.finished_at < horizon and o.flow_id is null
      limit prune_ledger.max_rows
      for update skip locked
    ))
    returning f.job_id, f.fencing_token, f.ctid
  )
  select count(*), max(o.fencing_token), array_agg(o.ctid), array_agg(o.job_id) into gone, highest, ctids, job_ids from old o;
  perform faultline.forget_steps(job_ids);
end
$$;

-- Delete failed and cancelled jobs of no flow that ended before `horizon`, with what is stored for them and the unique keys that name
-- them. Before: `faultline.verb` is prune, and the caller plans for full tables. Returns how many, and the highest token.
create or replace function faultline.prune_failed(horizon timestamptz, max_rows integer, out gone integer, out highest bigint)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  ended record;
  job_ids uuid[];
begin
  select array_agg(e.ctid) as ctids, array_agg(e.id) as ids, array_agg(e.queue) as queues, array_agg(e.unique_key) as keys,
    array_agg(e.task) as tasks
  into ended
  from (
    select o.ctid, o.id, o.queue, o.unique_key, o.task
    from faultline.open_jobs o
    where o.state in ('failed', 'cancelled') and o.finished_at < horizon and o.flow_id is null
    limit prune_failed.max_rows
    for update skip locked
  ) e;
  perform faultline.free_keys(ended.ids, ended.queues, ended.keys, ended.tasks);
  with old as (
    delete from faultline.open_jobs j
    where j.ctid = any (ended.ctids)
      -- A job goes with its key: without it, nobody would know that it failed.
      and not exists (
        select from faultline.unique_keys k
        where k.queue = j.queue and k.key = j.unique_key and k.task = j.task and k.job_id = j.id
      )
    returning j.id, j.fencing_token
  )
  select count(*), max(o.fencing_token), array_agg(o.id) into gone, highest, job_ids from old o;
  perform faultline.forget_steps(job_ids);
end
$$;

-- Delete flows that ended before `horizon` and of which no job is open. At most `max_rows` flows are looked at, and so many jobs are
-- deleted. `by_settings`: one that ended badly is kept as long as failed jobs. Before: `faultline.verb` is prune, and the caller plans
-- for full tables. Returns how many jobs, the highest token, and where their ledger rows were.
create or replace function faultline.prune_flows(
  horizon timestamptz, max_rows integer, by_settings boolean, out gone integer, out highest bigint, out ctids tid[]
)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  flow record;
  ended_at timestamptz;
  part record;
begin
  gone := 0;
  -- One scan: to look for the next flow each time would read all that were passed over, in this transaction, again.
  for flow in
    select f.id, f.pruning
    from faultline.flows f
    where f.live_at < horizon
    order by f.live_at
    limit prune_flows.max_rows
    for update skip locked
  loop
    exit when gone >= prune_flows.max_rows;
    if not flow.pruning then
      -- When its first job ended. Now, if a job of it is open: then it is looked at again after its retention time.
      ended_at := case when faultline.is_live(flow.id) then faultline.clock() else coalesce(
        (select l.finished_at from faultline.ledger l where l.job_id = flow.id),
        -- A flow that ended badly is kept at least as long as failed jobs.
        (
          select j.finished_at + case when by_settings then make_interval(
            secs => (select greatest(s.keep_failed_seconds - s.keep_flows_seconds, 0) from faultline.settings s)
          ) else '0' end
          from faultline.open_jobs j
          where j.id = flow.id
        ),
        '-infinity'
      ) end;
      update faultline.flows f
      set live_at = ended_at, pruning = ended_at < horizon
      where f.id = flow.id;
      continue when ended_at >= horizon;
    end if;
    part := faultline.prune_flow(flow.id, prune_flows.max_rows - gone);
    gone := gone + part.gone;
    highest := greatest(highest, part.highest);
    ctids := ctids || part.ctids;
  end loop;
end
$$;

-- Delete up to `max_jobs` jobs of a flow, the deepest first and its root last. Before: `faultline.verb` is prune, the
-- caller has locked the flow's row, no job of the flow is open, and the caller plans for full tables. Returns how many are
-- gone, whether that was all, the highest token, and where the ledger rows were.
-- A job that the flow only waited for is not deleted: it has a retention time of its own.
create or replace function faultline.prune_flow(
  flow_id uuid, max_jobs integer, out gone integer, out is_gone boolean, out highest bigint, out ctids tid[]
)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  parent uuid := prune_flow.flow_id;
  depth integer := 0;
  bite record;
  forgotten record;
begin
  gone := 0;
  is_gone := false;
  highest := 0;
  ctids := '{}';
  loop
    if gone >= prune_flow.max_jobs then
      return;
    end if;
    -- The next children of this job: those without children of their own, and the first one that has some.
    select
      array_agg(b.call_id) filter (where b.is_leaf) as calls,
      array_agg(b.index) filter (where b.is_leaf) as indexes,
      array_agg(b.job_id) filter (where b.is_leaf and b.is_member) as ids,
      (array_agg(b.job_id) filter (where not b.is_leaf))[1] as next_parent
    into bite
    from (
      select
        e.call_id, e.index, e.job_id, m.is_member,
        -- Deeper than any program goes: a circle, as only foreign SQL makes it.
        depth > 1000 or not m.is_member or (
          select d.id
          from faultline.calls d
          cross join lateral (select from faultline.edges x where x.call_id = d.id limit 1) x
          where d.job_id = e.job_id and d.kind = 'children'
          limit 1
        ) is null as is_leaf
      from (
        select e.call_id, e.index, e.job_id
        from faultline.calls c
        cross join lateral (
          select e.call_id, e.index, e.job_id from faultline.edges e where e.call_id = c.id
          order by e.index limit prune_flow.max_jobs - gone
        ) e
        where c.job_id = parent and c.kind = 'children'
        limit prune_flow.max_jobs - gone
      ) e
      -- Each looked up by itself: for `exists`, the planner may read all jobs and keep a table of them.
      cross join lateral (
        select prune_flow.flow_id in (
          (select j.flow_id from faultline.open_jobs j where j.id = e.job_id limit 1),
          (select f.flow_id from faultline.ledger f where f.job_id = e.job_id limit 1)
        ) is true as is_member
      ) m
    ) b;
    if bite.calls is not null then
      forgotten := faultline.forget_jobs(coalesce(bite.ids, '{}'));
      delete from faultline.edges e
      where e.ctid = any (array(
        select x.ctid
        from unnest(bite.calls, bite.indexes) as u (call_id, index)
        cross join lateral (
          select x.ctid from faultline.edges x where x.call_id = u.call_id and x.index = u.index offset 0
        ) x
      ));
      gone := gone + cardinality(bite.calls);
    elsif bite.next_parent is not null then
      parent := bite.next_parent;
      depth := depth + 1;
      continue;
    elsif parent = prune_flow.flow_id then
      forgotten := faultline.forget_jobs(array[parent]);
      delete from faultline.flows f where f.id = parent;
      gone := gone + 1;
      is_gone := true;
    else
      -- All children of a child are gone: it is a leaf now.
      parent := prune_flow.flow_id;
      depth := 0;
      continue;
    end if;
    highest := greatest(highest, forgotten.highest);
    ctids := ctids || coalesce(forgotten.ctids, '{}');
    if is_gone then
      return;
    end if;
  end loop;
end
$$;

-- Delete entries of the journal from before `horizon`. Before: the caller plans for full tables. Returns how many, and where they were.
create or replace function faultline.prune_journal(horizon timestamptz, max_rows integer, out gone integer, out ctids tid[])
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  with old as (
    delete from faultline.journal n
    where n.ctid = any (array(
      select o.ctid from faultline.journal o where o.at < horizon limit prune_journal.max_rows for update skip locked
    ))
    returning n.ctid
  )
  select count(*), array_agg(o.ctid) into gone, ctids from old o;
end
$$;

-- Delete idempotency keys from before `horizon` whose jobs are not open. Before: the caller plans for full tables. Returns how many,
-- and where they were.
create or replace function faultline.prune_keys(horizon timestamptz, max_rows integer, out gone integer, out ctids tid[])
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  with old as (
    delete from faultline.keys k
    where k.ctid = any (array(
      select o.ctid from faultline.keys o
      where o.created_at < horizon
        and not exists (select from faultline.open_jobs j where j.id = o.job_id)
      limit prune_keys.max_rows
      for update of o skip locked
    ))
    returning k.ctid
  )
  select count(*), array_agg(o.ctid) into gone, ctids from old o;
end
$$;

-- Delete keys of unique jobs whose job has ended and whose period was over before `horizon`. Those of open jobs are looked at again in
-- an hour. Before: the caller plans for full tables. Returns how many are gone.
create or replace function faultline.prune_unique_keys(horizon timestamptz, max_rows integer, out gone integer)
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  with looked as materialized (
    select a.ctid, exists (
      select from faultline.open_jobs j where j.id = a.job_id and j.state in ('queued', 'running')
    ) as is_open
    from faultline.unique_keys a
    where greatest(a.at, a.until) < horizon
    order by greatest(a.at, a.until)
    limit 10::bigint * prune_unique_keys.max_rows
  ),
  later as (
    -- Behind the others: however many jobs wait for long, those that have ended are reached.
    update faultline.unique_keys k
    set until = faultline.clock() + interval '1 hour'
    where k.ctid = any (array(
      select o.ctid from faultline.unique_keys o
      where o.ctid = any (array(select l.ctid from looked l where l.is_open))
      for update skip locked
    ))
  ),
  old as (
    delete from faultline.unique_keys k
    where k.ctid = any (array(
      select o.ctid from faultline.unique_keys o
      where o.ctid = any (array(select l.ctid from looked l where not l.is_open))
      limit prune_unique_keys.max_rows
      for update skip locked
    ))
    returning k.key
  )
  select count(*) into gone from old o;
end
$$;

-- Delete what was decided about ticks before `horizon`, and schedules made at run time that ended before; bring schedules back whose
-- position is that of a clock that was ahead. Before: `faultline.verb` is prune. Returns how many ticks are gone.
create or replace function faultline.prune_ticks(horizon timestamptz, max_rows integer, out gone integer)
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  delete from faultline.ticks t
  where t.ctid = any (array(
    select o.ctid from faultline.ticks o
    where o.decided_at < horizon
    order by o.decided_at
    limit prune_ticks.max_rows
    for update skip locked
  ));
  get diagnostics gone = row_count;
  -- There are few schedules: all are looked at.
  perform faultline.set_back_schedules();
  delete from faultline.schedules s
  where s.id = any (array(
    select o.id from faultline.schedules o
    where o.ended_at < horizon and o.digest is null
    limit prune_ticks.max_rows
    for update skip locked
  ));
end
$$;

-- Delete ended jobs of a flow with all that is stored for them. Before: `faultline.verb` is prune, and the jobs have no
-- children any more. Returns the highest token that any of them had, and where their ledger rows were.
create or replace function faultline.forget_jobs(job_ids uuid[], out highest bigint, out ctids tid[])
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  gone record;
begin
  with done as (
    delete from faultline.ledger f where f.job_id = any (forget_jobs.job_ids) returning f.fencing_token, f.ctid
  ),
  ended as (
    delete from faultline.open_jobs j where j.id = any (forget_jobs.job_ids)
    returning j.fencing_token, j.id, j.queue, j.unique_key, j.task
  )
  select
    greatest((select max(d.fencing_token) from done d), (select max(e.fencing_token) from ended e)) as highest,
    (select array_agg(d.ctid) from done d) as ctids,
    array(select e.id from ended e) as ids,
    array(select e.queue from ended e) as queues,
    array(select e.unique_key from ended e) as keys,
    array(select e.task from ended e) as tasks
  into gone;
  highest := gone.highest;
  ctids := gone.ctids;
  perform faultline.free_keys(gone.ids, gone.queues, gone.keys, gone.tasks);
  delete from faultline.edges e
  where e.call_id = any (array(select c.id from faultline.calls c where c.job_id = any (forget_jobs.job_ids)));
  delete from faultline.calls c where c.job_id = any (forget_jobs.job_ids);
  delete from faultline.signals s where s.job_id = any (forget_jobs.job_ids);
  delete from faultline.streams s where s.job_id = any (forget_jobs.job_ids);
  delete from faultline.steps s where s.job_id = any (forget_jobs.job_ids);
  delete from faultline.sweeps s where s.job_id = any (forget_jobs.job_ids);
end
$$;

-- Delete what is stored for jobs of no flow that are deleted: steps, signals that they did not receive, streams. Null: no jobs.
-- Before: `faultline.verb` is prune.
create or replace function faultline.forget_steps(job_ids uuid[]) returns void
language plpgsql volatile
as $$
begin
  if forget_steps.job_ids is null then
    return;
  end if;
  delete from faultline.steps s where s.job_id = any (forget_steps.job_ids);
  -- A job that received none of its signals is in no flow.
  if exists (select from faultline.signals) then
    delete from faultline.signals s where s.job_id = any (forget_steps.job_ids);
  end if;
  if exists (select from faultline.streams) then
    delete from faultline.streams s where s.job_id = any (forget_steps.job_ids);
  end if;
end
$$;

-- Delete the unique keys that name these jobs, which failed or were cancelled and are about to be deleted: such a job counts for no
-- period, also once it is gone. A key that somebody holds is left alone.
create or replace function faultline.free_keys(job_ids uuid[], queues text[], keys text[], tasks text[]) returns void
language sql volatile
as $$
  delete from faultline.unique_keys k
  where k.ctid = any (array(
    select n.ctid
    from unnest(free_keys.job_ids, free_keys.queues, free_keys.keys, free_keys.tasks) as e (id, queue, key, task)
    cross join lateral (
      select k.ctid from faultline.unique_keys k
      where k.queue = e.queue and k.key = e.key and k.task = e.task and k.job_id = e.id
      for update skip locked
    ) n
  ));
$$;

-- Have a BRIN index forget how old the rows were that stood in these places. It keeps the oldest time that a range of pages ever had:
-- when new rows fill the range, every prune would still read it, and in the end the whole table. Vacuum summarizes the range again. A
-- running vacuum holds the lock that this needs. Then this does not wait: prune only reads that range more often.
create or replace function faultline.desummarize_pages(index regclass, ctids tid[]) returns void
language plpgsql volatile
as $$
declare
  patience constant text := current_setting('lock_timeout');
begin
  perform set_config('lock_timeout', '1ms', true);
  -- A range has 32 pages.
  perform brin_desummarize_range(desummarize_pages.index, r.first_page)
  from (
    select distinct (p.ctid::text::point)[0]::bigint / 32 * 32 as first_page from unnest(desummarize_pages.ctids) as p (ctid)
  ) r;
  perform set_config('lock_timeout', patience, true);
exception when lock_not_available then
  null;
end
$$;
