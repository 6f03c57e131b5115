-- Move finished jobs to the ledger, each with its result. Answers with the leases for which nothing was written.
-- Before: the caller holds the leases. After: gone from open_jobs and in the ledger, in one statement.
--
-- A lease that has run out is still good while nobody else was granted the job: refusing would only run it twice.
-- Locked rows are skipped and reported as busy: one of them would otherwise hold up the whole batch.
-- Sent again after a lost answer, it finds its own rows in the ledger and reports nothing.
create or replace function faultline.complete(
  job_ids uuid[],
  tokens bigint[],
  owners text[],
  results jsonb default null
) returns setof faultline.refusal
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan
set jit = off
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  done bigint[];
begin
  perform faultline.check_leases(complete.job_ids, complete.tokens, complete.owners);
  if complete.results is not null and (
    jsonb_typeof(complete.results) <> 'array' or jsonb_array_length(complete.results) <> cardinality(complete.job_ids)
  ) then
    raise exception 'results must be a JSON array with one result for each lease' using errcode = 'FL005';
  end if;
  perform faultline.durable();
  perform faultline.as_verb('complete');
  with held as materialized (
    select j.ctid, l.place
    from unnest(complete.job_ids, complete.tokens, complete.owners) with ordinality as l (job_id, token, owner, place)
    -- Looked up lease by lease. A plain join would be the planner's to turn round, and one that takes the table for empty
    -- (it was when it was last vacuumed) walks all of it for every batch.
    cross join lateral (
      select j.ctid
      from faultline.open_jobs j
      where j.id = l.job_id and j.fencing_token = l.token and j.lease_owner = l.owner
      for update of j skip locked
    ) j
  ),
  finished as (
    delete from faultline.open_jobs j
    using held
    where j.ctid = held.ctid
    returning j.*, held.place
  ),
  entered as (
    insert into faultline.ledger (
      job_id, fencing_token, created_at, claimed_at, finished_at, priority, attempt, max_attempts,
      owner, queue, task, idempotency_key, args, result
    )
    select
      f.id, f.fencing_token, f.created_at, f.claimed_at, faultline.now(), f.priority, f.attempt, f.max_attempts,
      f.lease_owner, f.queue, f.task, f.idempotency_key, case when f.keep_args then f.args end,
      nullif(complete.results -> (f.place::integer - 1), 'null')
    from finished f
  )
  select array_agg(f.place) into done from finished f;
  perform faultline.as_verb('');
  if coalesce(cardinality(done), 0) < cardinality(complete.job_ids) then
    return query select * from faultline.refuse('complete', complete.job_ids, complete.tokens, complete.owners, done);
  end if;
end
$$;
