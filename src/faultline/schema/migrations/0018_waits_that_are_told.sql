-- Schedules that the code of a worker declares otherwise than what is in force, when it last declared them: see
-- declare_schedules.
alter table faultline.workers add column waiting_schedules text[];

-- Jobs that were locked when the budget was raised, and may wait for too long: see wake_takers.
alter table faultline.budgets add column asleep uuid[];

-- Not valid, so that nobody waits while the whole journal is read: `migrate` validates it afterwards, beside running work.
alter table faultline.journal drop constraint known_event;
alter table faultline.journal add constraint known_event check (event in (
  'attempt_failed', 'lease_reaped', 'stale_write_blocked', 'cancelled', 'retried', 'worker_lost', 'recovered', 'reconciled',
  'paused', 'resumed', 'api_key_added', 'api_key_revoked', 'setting_changed',
  'program_changed', 'started_over', 'forked', 'signalled', 'subscribed', 'unsubscribed',
  'schedule_failed', 'expired', 'superseded', 'replaced', 'limit_changed', 'permits_recounted', 'gave_way'
)) not valid;
