-- Delete up to `max_rows` rows that are older than `older_than` (default: as the settings say). Returns how many were
-- deleted.
--   ledger   succeeded jobs, with their steps
--   failed   failed and cancelled jobs, with their steps and the unique keys that name them: those count for no period
--   flows    flows whose first job ended so long ago and of which no job is open, as a whole: jobs, calls, signals, streams.
--            At most `max_rows` flows are looked at: one that is live is looked at again after its retention time
--   journal  entries of the journal
--   keys     idempotency keys, but never while their job is open
--   ticks    what was decided about ticks, and schedules made at run time that have ended; kept as long as the journal. Schedules
--            whose position is that of a clock that was ahead are brought back
--   unique_keys  keys of unique jobs, which mean nothing once their job has ended and their period is over; by default an hour
--            after the later of the job's enqueue and the end of the period. At most ten times `max_rows` are looked at: one
--            whose job is open is looked at again in an hour
-- Locked rows are skipped until the next call, so pruning blocks no one.
create or replace function faultline.prune(what text, older_than interval default null, max_rows integer default 1000) returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan
set jit = off
set max_parallel_workers_per_gather = 0
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
  horizon timestamptz;
  pruned uuid[];
  highest bigint;
  rows_gone integer := 0;
  patience constant text := current_setting('lock_timeout');
  -- Where the deleted rows were, and the BRIN index of that table: it stores the oldest time of each range of 32 pages.
  ctids tid[];
  ages regclass;
  flow record;
  ended_at timestamptz;
  part record;
begin
  perform faultline.check_most('max_rows', prune.max_rows);
  -- A thousand years ago is a time that PostgreSQL has.
  if prune.older_than not between interval '0' and interval '1000 years' then
    raise exception 'older_than must be between 0 and 1000 years, not %', prune.older_than
      using errcode = 'FL005', detail = 'Nothing was changed.';
  end if;
  horizon := faultline.clock() - coalesce(prune.older_than, (
    select make_interval(secs => case prune.what
      when 'ledger' then s.keep_succeeded_seconds
      when 'failed' then s.keep_failed_seconds
      when 'journal' then s.keep_journal_seconds
      when 'ticks' then s.keep_journal_seconds
      when 'keys' then s.keep_keys_seconds
      when 'flows' then s.keep_flows_seconds
      when 'unique_keys' then 3600
    end)
    from faultline.settings s
  ));
  perform faultline.set_current_verb('prune');
  case prune.what
    when 'ledger' then
      with old as (
        delete from faultline.ledger f
        where f.ctid = any (array(
          select o.ctid from faultline.ledger o
          where o.finished_at < horizon and o.flow_id is null
          limit prune.max_rows
          for update skip locked
        ))
        returning f.job_id, f.fencing_token, f.ctid
      )
      select array_agg(o.job_id), max(o.fencing_token), array_agg(o.ctid) into pruned, highest, ctids from old o;
      ages := to_regclass('faultline.ledger_finished');
      rows_gone := coalesce(cardinality(pruned), 0);
    when 'failed' then
      select array_agg(e.ctid) as ctids, array_agg(e.id) as ids, array_agg(e.queue) as queues, array_agg(e.unique_key) as keys,
        array_agg(e.task) as tasks
      into part
      from (
        select o.ctid, o.id, o.queue, o.unique_key, o.task
        from faultline.open_jobs o
        where o.state in ('failed', 'cancelled') and o.finished_at < horizon and o.flow_id is null
        limit prune.max_rows
        for update skip locked
      ) e;
      perform faultline.free_keys(part.ids, part.queues, part.keys, part.tasks);
      with old as (
        delete from faultline.open_jobs j
        where j.ctid = any (part.ctids)
          -- A job goes with its key: without it, nobody would know that it failed.
          and not exists (
            select from faultline.unique_keys k
            where k.queue = j.queue and k.key = j.unique_key and k.task = j.task and k.job_id = j.id
          )
        returning j.id, j.fencing_token
      )
      select array_agg(o.id), max(o.fencing_token) into pruned, highest from old o;
      rows_gone := coalesce(cardinality(pruned), 0);
    when 'journal' then
      with old as (
        delete from faultline.journal n
        where n.ctid = any (array(
          select o.ctid from faultline.journal o where o.at < horizon limit prune.max_rows for update skip locked
        ))
        returning n.ctid
      )
      select count(*), array_agg(o.ctid) into rows_gone, ctids from old o;
      ages := to_regclass('faultline.journal_at');
    when 'keys' then
      with old as (
        delete from faultline.keys k
        where k.ctid = any (array(
          select o.ctid from faultline.keys o
          where o.created_at < horizon
            and not exists (select from faultline.open_jobs j where j.id = o.job_id)
          limit prune.max_rows
          for update of o skip locked
        ))
        returning k.ctid
      )
      select count(*), array_agg(o.ctid) into rows_gone, ctids from old o;
      ages := to_regclass('faultline.keys_created');
    when 'ticks' then
      delete from faultline.ticks t
      where t.ctid = any (array(
        select o.ctid from faultline.ticks o
        where o.decided_at < horizon
        order by o.decided_at
        limit prune.max_rows
        for update skip locked
      ));
      get diagnostics rows_gone = row_count;
      -- There are few schedules: all are looked at.
      perform faultline.set_back_schedules();
      delete from faultline.schedules s
      where s.id = any (array(
        select o.id from faultline.schedules o
        where o.ended_at < horizon and o.digest is null
        limit prune.max_rows
        for update skip locked
      ));
    when 'unique_keys' then
      with looked as materialized (
        select a.ctid, exists (
          select from faultline.open_jobs j where j.id = a.job_id and j.state in ('queued', 'running')
        ) as is_open
        from faultline.unique_keys a
        where greatest(a.at, a.until) < horizon
        order by greatest(a.at, a.until)
        limit 10::bigint * prune.max_rows
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
          limit prune.max_rows
          for update skip locked
        ))
        returning k.key
      )
      select count(*) into rows_gone from old o;
    when 'flows' then
      -- One scan: to look for the next flow each time would read all that were passed over, in this transaction, again.
      for flow in
        select f.id, f.pruning
        from faultline.flows f
        where f.live_at < horizon
        order by f.live_at
        limit prune.max_rows
        for update skip locked
      loop
        exit when rows_gone >= prune.max_rows;
        if not flow.pruning then
          -- When its first job ended. Now, if a job of it is open: then it is looked at again after its retention time.
          ended_at := case when faultline.is_live(flow.id) then faultline.clock() else coalesce(
            (select l.finished_at from faultline.ledger l where l.job_id = flow.id),
            -- A flow that ended badly is kept at least as long as failed jobs.
            (
              select j.finished_at + case when prune.older_than is null then make_interval(
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
        part := faultline.prune_flow(flow.id, prune.max_rows - rows_gone);
        rows_gone := rows_gone + part.gone;
        highest := greatest(highest, part.highest);
        ctids := ctids || part.ctids;
      end loop;
      ages := to_regclass('faultline.ledger_finished');
    else
      raise exception 'cannot prune "%"', prune.what
        using errcode = 'FL005', hint = 'choose ledger, failed, journal, keys, unique_keys, ticks or flows';
  end case;
  if pruned is not null then
    delete from faultline.steps s where s.job_id = any (pruned);
    -- A job that received none of its signals is in no flow.
    if exists (select from faultline.signals) then
      delete from faultline.signals s where s.job_id = any (pruned);
    end if;
    if exists (select from faultline.streams) then
      delete from faultline.streams s where s.job_id = any (pruned);
    end if;
  end if;
  if highest > 0 then
    -- If one of these ids is enqueued again, `claim` must give it a token above all that were used before.
    update faultline.settings s set token_floor = highest where s.token_floor < highest;
  end if;
  perform faultline.set_current_verb('');
  if ctids is not null then
    -- A BRIN index keeps the oldest time that a range of pages ever had. When new rows fill the range, every prune
    -- would still read it, and in the end the whole table. So desummarize the range; vacuum summarizes it again. A
    -- running vacuum holds the lock that this needs. Then do not wait: prune only reads that range more often.
    begin
      perform set_config('lock_timeout', '1ms', true);
      perform brin_desummarize_range(ages, r.first_page)
      from (select distinct (p.ctid::text::point)[0]::bigint / 32 * 32 as first_page from unnest(ctids) as p (ctid)) r;
      perform set_config('lock_timeout', patience, true);
    exception when lock_not_available then
      null;
    end;
  end if;
  return rows_gone;
end
$$;
