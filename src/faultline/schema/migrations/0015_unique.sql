-- Expiry and uniqueness. A plain job stores nothing for them: the hot table gets nullable columns only, and the one new
-- index has no entry for it. To build that index, writers wait while the table of open jobs is read once: seconds for millions.
alter table faultline.open_jobs
  -- Cancelled if no worker has claimed it by then. Null: never.
  add column expires_at timestamptz,
  -- What it is unique by, in its queue: see unique_keys.
  add column unique_key text;
-- What `expire` walks. A job that was claimed once no longer expires, and is not in it.
create index open_jobs_expiry on faultline.open_jobs (expires_at)
  where state = 'queued' and expires_at is not null and fencing_token = 0;
-- Keys of unique jobs. Judged when somebody enqueues, never when jobs are claimed or end: so others pay nothing.
create table faultline.unique_keys (
  queue text not null,
  key text not null,
  -- The job that was last made for it.
  job_id uuid not null,
  -- When that was.
  at timestamptz not null,
  -- Another is not made before then, whatever became of the job. Null: there is no such time.
  until timestamptz,
  primary key (queue, key),
  constraint sane_key check (length(key) between 1 and 500)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);
create index unique_keys_at on faultline.unique_keys (at);
-- What workers count of them: see core/measures.py.
alter table faultline.tallies add column expired bigint not null default 0;
-- Not valid, so that nobody waits while the whole journal is read: `migrate` validates it afterwards, beside running work.
alter table faultline.journal drop constraint known_event;
alter table faultline.journal add constraint known_event check (event in (
  'attempt_failed', 'lease_reaped', 'stale_write_blocked', 'cancelled', 'retried', 'worker_lost', 'recovered', 'reconciled',
  'paused', 'resumed', 'api_key_added', 'api_key_revoked', 'setting_changed',
  'program_changed', 'started_over', 'forked', 'signalled', 'subscribed', 'unsubscribed',
  'schedule_failed', 'expired', 'superseded', 'replaced'
)) not valid;
