-- End failed attempts. Returns the leases for which nothing was written.
-- Before: the caller holds the leases. After, by `then` of each failure:
--   retry   rescheduled after `delay_seconds`, or failed if this was the last attempt
--   fail    failed
--   cancel  cancelled
-- In every case the owner is cleared, the token stays, and the journal records the error. If the job has ended, those who
-- wait for it are nudged, and its open children are swept.
--
-- `failures` is a JSON array with one failure per lease: [{"then": "retry", "delay_seconds": 5, "error": "…"}, …]. `calls`, if
-- given, has the numbers of the calls of its program that it failed by: a retry opens them again.
-- The default delay doubles with each attempt, from 2 seconds up to an hour.
create or replace function faultline.fail(
  job_ids uuid[],
  tokens bigint[],
  owners text[],
  failures jsonb
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
  done bigint[];
  -- What has ended and is of a flow, or waited for.
  ended_badly uuid[];
  unique_ids uuid[];
begin
  perform faultline.check_leases(fail.job_ids, fail.tokens, fail.owners);
  perform faultline.check_failures(fail.failures, cardinality(fail.job_ids));
  perform faultline.require_synchronous_commit();
  with held as materialized (
    select
      j.ctid,
      l.position,
      j.lease_owner as owner,
      j.lease_expires_at,
      left(fail.failures -> (l.position::integer - 1) ->> 'error', 65536) as error,
      (
        select array_agg(c.number)
        from jsonb_array_elements_text(nullif(fail.failures -> (l.position::integer - 1) -> 'calls', 'null')) as c (number)
      ) as calls,
      case fail.failures -> (l.position::integer - 1) ->> 'then'
        when 'cancel' then 'cancelled'
        when 'retry' then case when j.attempt < j.max_attempts then 'queued' else 'failed' end
        else 'failed'
      end as state,
      coalesce(
        (fail.failures -> (l.position::integer - 1) ->> 'delay_seconds')::float8,
        faultline.backoff(j.attempt)
      ) as delay_seconds
    from unnest(fail.job_ids, fail.tokens, fail.owners) with ordinality as l (job_id, token, owner, position)
    -- Looked up one by one, as in `complete`.
    join faultline.open_jobs j on j.id = any (array[l.job_id])
    where j.fencing_token = l.token and j.lease_owner = l.owner
    for update of j skip locked
  ),
  ended as (
    update faultline.open_jobs j
    set state = held.state,
        lease_owner = null,
        lease_expires_at = null,
        next_run_at = case
          when held.state = 'queued' then faultline.clock() + make_interval(secs => held.delay_seconds)
          else j.next_run_at
        end,
        finished_at = case when held.state <> 'queued' then faultline.clock() end,
        stopped_by = case when held.state <> 'queued' then held.calls end,
        last_error = held.error
    from held
    where j.ctid = held.ctid
    returning
      j.id, j.fencing_token, j.attempt, j.state, j.next_run_at, held.owner, held.error, held.position,
      j.claimed_at, held.lease_expires_at, j.renewals, j.flow_id, j.watched, j.unique_key
  ),
  recorded as (
    insert into faultline.journal (at, job_id, event, fencing_token, owner, detail)
    select
      faultline.clock(), e.id, case e.state when 'cancelled' then 'cancelled' else 'attempt_failed' end,
      e.fencing_token, e.owner,
      jsonb_build_object('attempt', e.attempt, 'state', e.state, 'error', e.error)
        || case e.state when 'queued' then jsonb_build_object('next_run_at', e.next_run_at) else '{}' end
        || faultline.lease_details(e.claimed_at, e.lease_expires_at, e.renewals)
    from ended e
    order by e.id
  )
  select
    array_agg(e.position),
    array_agg(e.id) filter (where e.state <> 'queued' and (e.flow_id is not null or e.watched)),
    array_agg(e.id) filter (where e.state = 'queued' and e.unique_key is not null)
  into done, ended_badly, unique_ids
  from ended e;
  if ended_badly is not null then
    perform faultline.end_badly(ended_badly);
  end if;
  if unique_ids is not null then
    perform faultline.supersede(unique_ids);
  end if;
  if coalesce(cardinality(done), 0) < cardinality(fail.job_ids) then
    return query select * from faultline.refuse('fail', fail.job_ids, fail.tokens, fail.owners, done);
  end if;
end
$$;
