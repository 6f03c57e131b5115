-- Move finished jobs to the ledger, each with its result. Returns the leases for which nothing was written.
-- Before: the caller holds the leases. After: gone from open_jobs and in the ledger, in one statement.
--
-- An expired lease is still accepted while nobody else has claimed the job: refusing would only run it twice.
-- Locked rows are skipped and reported as busy: one of them would otherwise block the whole batch. There are nearly never
-- any, and locking each row before deleting it would cost a sixth of the work: so the first try does not, for a millisecond.
-- Sent again after a lost answer, it finds its own rows in the ledger and reports nothing.
create or replace function faultline.complete(
  job_ids uuid[],
  tokens bigint[],
  owners text[],
  results jsonb default null
) returns setof faultline.refusal
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set jit = off
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  done bigint[];
  patience constant text := current_setting('lock_timeout');
  -- Places of the leases whose rows nobody else has locked; null while that was not asked.
  free bigint[];
begin
  perform faultline.check_leases(complete.job_ids, complete.tokens, complete.owners);
  if complete.results is not null and (
    jsonb_typeof(complete.results) <> 'array' or jsonb_array_length(complete.results) <> cardinality(complete.job_ids)
  ) then
    raise exception 'results must be a JSON array with one result per lease' using errcode = 'FL005';
  end if;
  perform faultline.durable();
  perform faultline.as_verb('complete');
  loop
    begin
      if free is null then
        perform set_config('lock_timeout', '1ms', true);
      end if;
      with finished as (
        delete from faultline.open_jobs j
        using unnest(complete.job_ids, complete.tokens, complete.owners) with ordinality as l (job_id, token, owner, place)
        -- An array cannot be merged along an index, so the planner never walks the table, however empty it takes it for.
        where j.id = any (array[l.job_id])
          and j.fencing_token = l.token and j.lease_owner = l.owner
          and (free is null or l.place = any (free))
        returning j.*, l.place
      ),
      entered as (
        insert into faultline.ledger (
          job_id, fencing_token, created_at, claimed_at, finished_at, priority, attempt, max_attempts,
          owner, queue, task, idempotency_key, args, result
        )
        select
          -- One time for the batch: with one of its own, each row would be one more record for the index by time.
          f.id, f.fencing_token, f.created_at, f.claimed_at, (select faultline.clock()), f.priority, f.attempt, f.max_attempts,
          f.lease_owner, f.queue, f.task, f.idempotency_key, case when f.keep_args then f.args end,
          nullif(complete.results -> (f.place::integer - 1), 'null')
        from finished f
      )
      select array_agg(f.place) into done from finished f;
      perform set_config('lock_timeout', patience, true);
      exit;
    exception when lock_not_available then
      if free is not null then
        raise;
      end if;
      select coalesce(array_agg(r.place), '{}') into free
      from (
        select l.place
        from unnest(complete.job_ids) with ordinality as l (job_id, place)
        join faultline.open_jobs j on j.id = any (array[l.job_id])
        for update of j skip locked
      ) r;
    end;
  end loop;
  perform faultline.as_verb('');
  if coalesce(cardinality(done), 0) < cardinality(complete.job_ids) then
    return query select * from faultline.refuse('complete', complete.job_ids, complete.tokens, complete.owners, done);
  end if;
end
$$;
