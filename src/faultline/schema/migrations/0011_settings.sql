-- How long workers keep what has ended, and how large a result may be: for all programs of this database, like the size of arguments.
alter table faultline.settings
  add column result_bytes_max integer not null default 1048576,
  add column keep_succeeded_seconds bigint not null default 604800,
  add column keep_failed_seconds bigint not null default 2592000,
  add column keep_journal_seconds bigint not null default 2592000,
  add column keep_keys_seconds bigint not null default 2592000;
-- Not valid, so that nobody waits while the whole journal is read: `migrate` validates it afterwards, beside running work.
alter table faultline.journal drop constraint known_event;
alter table faultline.journal add constraint known_event check (event in (
  'attempt_failed', 'lease_reaped', 'stale_write_blocked', 'cancelled', 'retried', 'worker_lost', 'recovered', 'reconciled',
  'paused', 'resumed', 'api_key_added', 'api_key_revoked', 'setting_changed'
)) not valid;
