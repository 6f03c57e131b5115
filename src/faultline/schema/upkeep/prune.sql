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
  rows_gone integer;
  highest bigint;
  -- Where the deleted rows were, and the BRIN index of that table: it stores the oldest time of each range of 32 pages.
  ctids tid[];
  ages regclass;
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
      select p.* into rows_gone, highest, ctids from faultline.prune_ledger(horizon, prune.max_rows) p;
      ages := to_regclass('faultline.ledger_finished');
    when 'failed' then
      select p.* into rows_gone, highest from faultline.prune_failed(horizon, prune.max_rows) p;
    when 'flows' then
      select p.* into rows_gone, highest, ctids from faultline.prune_flows(horizon, prune.max_rows, prune.older_than is null) p;
      ages := to_regclass('faultline.ledger_finished');
    when 'journal' then
      select p.* into rows_gone, ctids from faultline.prune_journal(horizon, prune.max_rows) p;
      ages := to_regclass('faultline.journal_at');
    when 'keys' then
      select p.* into rows_gone, ctids from faultline.prune_keys(horizon, prune.max_rows) p;
      ages := to_regclass('faultline.keys_created');
    when 'ticks' then
      rows_gone := faultline.prune_ticks(horizon, prune.max_rows);
    when 'unique_keys' then
      rows_gone := faultline.prune_unique_keys(horizon, prune.max_rows);
    else
      raise exception 'cannot prune "%"', prune.what
        using errcode = 'FL005', hint = 'choose ledger, failed, journal, keys, unique_keys, ticks or flows';
  end case;
  if highest > 0 then
    -- If one of these ids is enqueued again, `claim` must give it a token above all that were used before.
    update faultline.settings s set token_floor = highest where s.token_floor < highest;
  end if;
  perform faultline.set_current_verb('');
  if ctids is not null then
    perform faultline.desummarize_pages(ages, ctids);
  end if;
  return rows_gone;
end
$$;
