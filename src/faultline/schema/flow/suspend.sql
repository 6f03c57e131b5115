-- Give leases back to wait. Returns the leases for which nothing was written.
-- Before: the caller holds the leases. After: queued, no owner, the token unchanged, the attempt not used up. The job is
-- due when one of its waits is over: at once, if one is over already; by `resolve`; or when its time is up.
--
-- `waits` is a JSON array with an array of calls per lease: [[{"number": "3", "kind": "signal", "name": "approval",
-- "digest": "…", "seconds": 3600, "policy": null, "fresh": true, "together": false}, …], …]. Calls that are not known are
-- stored. The time of a call (`seconds` from now, or `until`) is set when the program first comes to it, and stays.
-- The call 0.0.0 stands for a budget that has too little: its time is given anew each time.
-- When an attempt comes to a call that no attempt before it came to, the attempts and reaps are counted from zero: the job
-- has made progress, and a flow that lasts for a month must not fail by one bad night in each week.
create or replace function faultline.suspend(
  job_ids uuid[],
  tokens bigint[],
  owners text[],
  waits jsonb
) returns setof faultline.refusal
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set jit = off
set max_parallel_workers_per_gather = 0
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  at timestamptz;
  done bigint[];
  ids uuid[];
  -- Those that have asked a budget.
  takers uuid[];
  roots uuid[];
  due uuid[];
begin
  perform faultline.read_committed('suspend');
  perform faultline.check_leases(suspend.job_ids, suspend.tokens, suspend.owners);
  perform faultline.check_waits(suspend.waits, cardinality(suspend.job_ids));
  perform faultline.require_synchronous_commit();
  select array_agg(h.position), array_agg(h.id), array_agg(h.id) filter (where h.has_asked) into done, ids, takers
  from (
    select l.position, j.id, j.takes is not null as has_asked
    from unnest(suspend.job_ids, suspend.tokens, suspend.owners) with ordinality as l (job_id, token, owner, position)
    -- Looked up one by one, as in `complete`.
    join faultline.open_jobs j on j.id = any (array[l.job_id])
    where j.fencing_token = l.token and j.lease_owner = l.owner
    for update of j skip locked
  ) h;
  if done is not null then
    at := faultline.clock();
    perform faultline.keep_waits(ids, done, suspend.tokens, suspend.waits, at);
    -- In a statement of its own, after the lock: it sees all that was committed before we had the lock.
    with looked as materialized (
      select
        i.id, i.position, k.is_new,
        k.has_ended or (select l.over or l.failed from faultline.can_resume(i.id, true) l)
          or coalesce(i.id = any (takers), false) and faultline.budget_raised_since_asked(i.id) as is_over,
        k.until
      from unnest(ids, done) as i (id, position)
      cross join lateral (
        select
          -- To wait for a budget is not progress.
          coalesce(bool_or(c.fencing_token = suspend.tokens[i.position] and c.number <> '0.0.0'), false) as is_new,
          -- Nothing is waited for: the caller has not read its history.
          coalesce(bool_or(c.ended_at is not null), true) as has_ended,
          min(c.until) as until
        from jsonb_to_recordset(suspend.waits -> (i.position::integer - 1)) as w (number text)
        cross join lateral (
          select c.number, c.fencing_token, c.ended_at, c.until from faultline.calls c
          where c.job_id = i.id and c.number = w.number
          offset 0
        ) c
      ) k
    ),
    suspended as (
      update faultline.open_jobs j
      set state = 'queued',
          lease_owner = null,
          lease_expires_at = null,
          started = false,
          attempt = case when l.is_new then 0 else j.attempt - 1 end::smallint,
          reaps = case when l.is_new then 0 else j.reaps end::smallint,
          next_run_at = case when l.is_over then faultline.clock() else coalesce(l.until, '9999-01-01Z') end,
          suspended = case when l.is_over then null else true end,
          flow_id = coalesce(j.flow_id, j.id)
      from looked l
      where j.id = any (array[l.id])
      returning j.id, j.flow_id, l.is_over
    )
    select array_agg(s.id) filter (where s.is_over), array_agg(s.id) filter (where s.flow_id = s.id)
    into due, roots
    from suspended s;
    insert into faultline.flows (id, begun_at) select r.id, at from unnest(roots) as r (id) on conflict do nothing;
    if due is not null then
      perform faultline.wake_for(due);
    end if;
  end if;
  if coalesce(cardinality(done), 0) < cardinality(suspend.job_ids) then
    return query select * from faultline.refuse('suspend', suspend.job_ids, suspend.tokens, suspend.owners, done);
  end if;
end
$$;
