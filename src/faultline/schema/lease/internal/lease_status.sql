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
