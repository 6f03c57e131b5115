-- Move finished jobs to the ledger, each with its result. Returns the leases for which nothing was written.
-- Before: the caller holds the leases. After: gone from open_jobs and in the ledger, in one statement.
--
-- An expired lease is accepted while no other owner has claimed the job: a refusal would only run the job again.
-- A locked row is skipped and reported as busy, so that it does not block the batch. Such rows are rare, and to lock
-- each row before its deletion would cost a sixth more: so the first try only waits for a millisecond, and the second
-- skips locked rows.
-- Sent again after a lost answer, it finds its rows in the ledger and returns nothing.
-- `claims`: the caller claims again as soon as this has been answered. So no other worker is woken for the permits that are
-- free by then: it would find nothing.
create or replace function faultline.complete(
  job_ids uuid[],
  tokens bigint[],
  owners text[],
  results jsonb default null,
  claims boolean default false
) returns setof faultline.refusal
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
  done bigint[];
  -- What waits for these jobs: calls in their own rows, and jobs that further calls wait for.
  call_ids bigint[];
  watched uuid[];
  -- What those of them held that had permits.
  permit_queues text[];
  permit_groups text[];
  patience constant text := current_setting('lock_timeout');
  -- Positions of the leases whose rows no other session has locked. Null during the first try.
  free bigint[];
begin
  perform faultline.check_leases(complete.job_ids, complete.tokens, complete.owners);
  if complete.results is not null and (
    jsonb_typeof(complete.results) <> 'array' or jsonb_array_length(complete.results) <> cardinality(complete.job_ids)
  ) then
    raise exception 'results must be a JSON array with one result per lease' using errcode = 'FL005';
  end if;
  perform faultline.require_synchronous_commit();
  perform faultline.set_current_verb('complete');
  loop
    begin
      if free is null then
        perform set_config('lock_timeout', '1ms', true);
      end if;
      with finished as (
        delete from faultline.open_jobs j
        using unnest(complete.job_ids, complete.tokens, complete.owners) with ordinality as l (job_id, token, owner, position)
        -- As an array, so that PostgreSQL looks up each id in the index: a plan made while the table was empty would
        -- scan it.
        where j.id = any (array[l.job_id])
          and j.fencing_token = l.token and j.lease_owner = l.owner
          and (free is null or l.position = any (free))
        returning j.*, l.position
      ),
      entered as (
        insert into faultline.ledger (
          job_id, fencing_token, created_at, claimed_at, finished_at, priority, attempt, max_attempts,
          owner, queue, task, idempotency_key, args, result, flow_id, progress, group_key
        )
        select
          -- One time for the whole batch: with different times, every row would add a WAL record of the index by time.
          f.id, f.fencing_token, f.created_at, f.claimed_at, (select faultline.clock()), f.priority, f.attempt, f.max_attempts,
          f.lease_owner, f.queue, f.task, f.idempotency_key, case when f.keep_args then f.args end,
          nullif(complete.results -> (f.position::integer - 1), 'null'), f.flow_id, f.progress, f.group_key
        from finished f
      )
      select
        array_agg(f.position),
        array_agg(f.call_id) filter (where f.call_id is not null),
        array_agg(f.id) filter (where f.watched),
        array_agg(f.queue) filter (where f.has_permit),
        array_agg(f.group_key) filter (where f.has_permit)
      into done, call_ids, watched, permit_queues, permit_groups
      from finished f;
      perform set_config('lock_timeout', patience, true);
      exit;
    exception when lock_not_available then
      if free is not null then
        raise;
      end if;
      select coalesce(array_agg(r.position), '{}') into free
      from (
        select l.position
        from unnest(complete.job_ids) with ordinality as l (job_id, position)
        join faultline.open_jobs j on j.id = any (array[l.job_id])
        for update of j skip locked
      ) r;
    end;
  end loop;
  perform faultline.set_current_verb('');
  if permit_queues is not null then
    perform faultline.free_ended(permit_queues, permit_groups, wakes => not complete.claims);
  end if;
  if call_ids is not null or watched is not null then
    perform faultline.nudge_waiters(call_ids, watched);
  end if;
  if coalesce(cardinality(done), 0) < cardinality(complete.job_ids) then
    return query select * from faultline.refuse('complete', complete.job_ids, complete.tokens, complete.owners, done);
  end if;
end
$$;
