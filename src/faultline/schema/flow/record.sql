-- Write calls of a program into the history of its job. Returns a refusal if the lease is lost, otherwise no row.
-- Before: the caller holds the lease. After: each call is begun, or has ended with its outcome; the job belongs to a flow.
-- `calls` is an array of {"number", "kind", "name", "digest", "outcome", "result", "error", "tries", "until_seconds"}. Without an
-- outcome the call has only begun. One that has ended stays as it is: sent again, nothing happens. Only why the program stops at
-- a signal is added to it, once: `error`. A retry opens such a call again.
-- A call that is `closed` is waited for no longer: its open children are cancelled. One that is `forgotten` is doubtful since a
-- retry, and the program makes another one in its place: it is forgotten, with what is doubtful and comes after it in its branch.
-- A saga that has `failed` leaves its job nothing to do but to undo: see only_undo.
create or replace function faultline.record(
  job_id uuid,
  fencing_token bigint,
  owner text,
  calls jsonb
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
  -- See `ended_moment`.
  moment bigint;
  given record;
  known faultline.calls;
  fails_saga constant boolean := jsonb_path_exists(record.calls, '$[*] ? (@.kind == "saga" && @.outcome == "failed")');
  undoes boolean;
begin
  perform faultline.require_synchronous_commit();
  if jsonb_typeof(record.calls) is distinct from 'array' then
    raise exception 'calls must be a JSON array of objects' using errcode = 'FL005';
  end if;
  if not faultline.lock_lease(record.job_id, record.fencing_token, record.owner) then
    return query
      select * from faultline.refuse('record', array[record.job_id], array[record.fencing_token], array[record.owner], '{}');
    return;
  end if;
  at := faultline.clock();
  if fails_saga then
    undoes := exists (
      select from faultline.calls c where c.job_id = record.job_id and c.kind = 'saga' and c.outcome = 'failed'
    );
  end if;
  for given in
    select c.*
    from jsonb_to_recordset(record.calls) as c (
      number text, kind text, name text, digest text, outcome text, result jsonb, error text, tries integer,
      until_seconds float8
    )
  loop
    if given.outcome = 'forgotten' then
      perform faultline.forget_doubtful(record.job_id, given.number);
      continue;
    end if;
    perform faultline.check_call(record.job_id, given.number, given.kind, given.name, given.outcome, given.until_seconds);
    if (
      given.outcome in ('failed', 'closed') or given.kind = 'race' or (given.kind = 'saga' and given.outcome = 'done')
      or (given.kind = 'signal' and given.error is not null)
    ) then
      moment := coalesce(moment, nextval(pg_get_serial_sequence('faultline.calls', 'id')));
    end if;
    select c.* into known from faultline.calls c where c.job_id = record.job_id and c.number = given.number;
    if known.id is null then
      insert into faultline.calls (
        job_id, number, kind, name, digest, fencing_token, begun_at, until, tries, ended_at, ended_moment, outcome, result, error
      )
      values (
        record.job_id, given.number, given.kind, given.name, given.digest, record.fencing_token, at,
        at + make_interval(secs => given.until_seconds), coalesce(given.tries, 0),
        case when given.outcome is not null then at end, case when given.outcome is not null then moment end,
        given.outcome, given.result, left(given.error, 16384)
      );
      continue;
    end if;
    perform faultline.same_call(known, given.kind, given.name, given.digest);
    if known.ended_at is not null then
      update faultline.calls c
      set ended_moment = moment,
          error = left(given.error, 16384)
      where c.id = known.id and c.kind = 'signal' and c.error is null and given.error is not null;
      continue;
    end if;
    update faultline.calls c
    set fencing_token = case when given.outcome is null then c.fencing_token else record.fencing_token end,
        tries = greatest(c.tries, given.tries),
        ended_at = case when given.outcome is not null then at end,
        ended_moment = case when given.outcome is not null then moment end,
        outcome = given.outcome,
        awaited = c.awaited and given.outcome is null,
        result = given.result,
        error = left(given.error, 16384)
    where c.id = known.id;
    if given.outcome = 'closed' and known.kind = 'children' then
      insert into faultline.sweeps (job_id, call_id, reason, at) values (record.job_id, known.id, 'closed', at);
    end if;
  end loop;
  perform faultline.join_flow(record.job_id);
  if fails_saga then
    perform faultline.only_undo(record.job_id, more_attempts => not undoes);
  end if;
end
$$;
