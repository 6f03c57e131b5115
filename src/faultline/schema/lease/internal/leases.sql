-- What holds a lease: compared under the row's lock, by every write.

-- Lock the row of one job. Returns whether the caller holds its lease; if not, the verb must write nothing.
-- Waits for the lock, so that a verb for a single job never returns `busy`.
create or replace function faultline.lock_lease(job_id uuid, fencing_token bigint, owner text) returns boolean
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  perform
  from faultline.open_jobs j
  where j.id = lock_lease.job_id and j.fencing_token = lock_lease.fencing_token and j.lease_owner = lock_lease.owner
  for update;
  return found;
end
$$;

-- Raise FL005 if the arrays differ in length or contain a null: a lease is an id, a token and an owner.
create or replace function faultline.check_leases(job_ids uuid[], tokens bigint[], owners text[]) returns void
language plpgsql immutable
as $$
begin
  if cardinality(job_ids) is distinct from cardinality(tokens)
    or cardinality(job_ids) is distinct from cardinality(owners)
    or array_position(job_ids, null) is not null
    or array_position(tokens, null) is not null
    or array_position(owners, null) is not null
  then
    raise exception 'job_ids, tokens and owners must be arrays of the same length without nulls' using errcode = 'FL005';
  end if;
end
$$;

-- Returns whether a lease is held, or why it is not, and the current token of its job.
--   held            the lease is held
--   token_mismatch  another owner has claimed the job since
--   lease_lost      the job was reaped or released, and has not been claimed again
--   not_running     the job has ended, or does not exist
-- Takes no lock: use it to explain a refusal, never to decide whether to write.
create or replace function faultline.lease_status(
  job_id uuid,
  fencing_token bigint,
  owner text,
  out reason text,
  out current_token bigint
)
language plpgsql stable
set jit = off
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
  known record;
begin
  select k.fencing_token, k.owner, k.state into known
  from faultline.jobs k
  where k.id = lease_status.job_id
  -- After a restore a job may be both open and in the ledger; the ledger is right.
  order by k.state = 'succeeded' desc
  limit 1;
  current_token := known.fencing_token;
  reason := case
    when known.state is null then 'not_running'
    when known.fencing_token is distinct from lease_status.fencing_token then 'token_mismatch'
    when known.owner is not null and known.owner is distinct from lease_status.owner then 'token_mismatch'
    when known.state in ('succeeded', 'failed', 'cancelled') then 'not_running'
    when known.owner is null then 'lease_lost'
    else 'held'
  end;
end
$$;

-- The journal's details of an ended lease. The job's row does not keep them.
create or replace function faultline.lease_details(claimed_at timestamptz, lease_expires_at timestamptz, renewals integer)
returns jsonb
language sql stable
as $$
  select jsonb_build_object('claimed_at', claimed_at, 'lease_expires_at', lease_expires_at, 'renewals', renewals);
$$;

-- The key of the advisory lock that serializes large claims of one queue.
create or replace function faultline.claim_lock(queue text) returns bigint
language sql immutable parallel safe
return hashtextextended('faultline claim ' || queue, 0);

-- Wait for this session's turn to claim many jobs of a queue at once. This saves work; it guards nothing (see `claim`).
-- Any login can hold an advisory lock, so a session waits for 250 ms at most. If that fails, it claims without a turn
-- for 1 s, and for twice as long after each further failure, up to 32 s.
create or replace function faultline.lock_large_claim(queue text) returns void
language plpgsql volatile
as $$
declare
  -- The end of the pause, in seconds since 1970, and its length, kept in a setting of the session. Other code of this
  -- session can write to the setting: anything but two numbers is ignored.
  in_vain constant float8[] := string_to_array(
    substring(current_setting('faultline.claim_lock_pause', true) from '^[0-9]{1,12}(?:[.][0-9]+)? [0-9]{1,4}$'), ' '
  );
  seconds constant float8 := extract(epoch from faultline.clock());
  patience constant text := current_setting('lock_timeout');
  pause constant float8 := least(coalesce(in_vain[2] * 2, 1), 32);
begin
  if in_vain[1] > seconds then
    return;
  end if;
  begin
    perform set_config('lock_timeout', '250ms', true);
    perform pg_advisory_xact_lock(faultline.claim_lock(lock_large_claim.queue));
    perform set_config('lock_timeout', patience, true);
    if in_vain is not null then
      perform set_config('faultline.claim_lock_pause', '', false);
    end if;
  exception when lock_not_available or deadlock_detected then
    perform set_config('faultline.claim_lock_pause', seconds + pause || ' ' || pause, false);
  end;
end
$$;

-- Return why a verb wrote nothing for some leases, and record it in the journal.
-- Before: the verb has written for the leases at the positions `done`. The others are lost, or another session locks
-- their rows.
-- After: one row for each of the others. All are in the journal but `busy`, which is not a refusal.
-- A lease that is completed in the ledger is not refused to `complete` (it is sent again after its answer was lost), nor to
-- `renew` (the task goes on after it has completed the job in its own transaction, or the worker has not noticed yet).
create or replace function faultline.refuse(
  verb text,
  job_ids uuid[],
  tokens bigint[],
  owners text[],
  done bigint[]
) returns setof faultline.refusal
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  perform faultline.require_synchronous_commit();
  return query
    with leases as (
      select * from unnest(refuse.job_ids, refuse.tokens, refuse.owners) with ordinality as l (job_id, token, owner, position)
    ),
    judged as materialized (
      select
        l.job_id, l.token, l.owner, v.current_token,
        case v.reason when 'held' then 'busy' else v.reason end as reason
      from (
        select l.job_id, l.token, l.owner from leases l
        -- By the whole lease: a batch may contain a stale and a held lease of one job, or one lease twice.
        except
        select l.job_id, l.token, l.owner from leases l where l.position = any (refuse.done)
      ) l
      cross join lateral faultline.lease_status(l.job_id, l.token, l.owner) v
      where not (
        refuse.verb in ('complete', 'renew')
        and exists (
          select from faultline.ledger f
          -- Looked up one by one, as in `complete`: a plan made while the ledger was empty would scan all of it.
          where f.job_id = any (array[l.job_id]) and f.fencing_token = l.token and f.owner = l.owner
        )
      )
    ),
    recorded as (
      insert into faultline.journal (at, job_id, event, fencing_token, owner, detail)
      select
        faultline.clock(), g.job_id, 'stale_write_blocked', g.token, g.owner,
        jsonb_build_object(
          'verb', refuse.verb, 'reason', g.reason, 'stale_token', g.token, 'current_token', g.current_token
        )
      from judged g
      where g.reason <> 'busy'
      order by g.job_id
    )
    select g.job_id, g.token, g.owner, g.reason, g.current_token from judged g;
end
$$;
