-- Every job, open or in the ledger. A statement sees a job that is moving to the ledger exactly once.
-- Both halves must have the same types, not even domains of them: otherwise the planner scans both tables for every query.
create or replace view faultline.jobs as
select
  j.id, j.state::text, j.queue::text, j.task::text, j.priority::smallint, j.attempt, j.max_attempts::smallint,
  j.fencing_token::bigint,
  j.created_at, j.next_run_at, j.claimed_at, j.finished_at,
  j.lease_owner as owner, j.lease_expires_at, j.renewals, j.reaps,
  j.idempotency_key, j.last_error, j.progress, j.args, null::jsonb as result, j.trace,
  j.flow_id, j.suspended, j.expires_at, j.group_key, j.group_at, j.unique_key
from faultline.open_jobs j
union all
select
  f.job_id, 'succeeded', f.queue, f.task, f.priority, f.attempt, f.max_attempts, f.fencing_token,
  f.created_at, null, f.claimed_at, f.finished_at,
  f.owner, null, null, null,
  f.idempotency_key, null, f.progress, f.args, f.result, null,
  f.flow_id, null, null, f.group_key, null, null
from faultline.ledger f;

-- What a job is given when it is enqueued: the columns of `parse_new_jobs`, in its order. All others have defaults.
create or replace view faultline.new_jobs as
select
  j.id, j.task, j.args, j.queue, j.priority, j.next_run_at, j.max_attempts, j.lease_seconds, j.keep_args, j.idempotency_key,
  j.trace, j.created_at, j.expires_at, j.group_key, j.in_group, j.group_at, j.unique_key
from faultline.open_jobs j;
