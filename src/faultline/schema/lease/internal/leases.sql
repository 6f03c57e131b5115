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
