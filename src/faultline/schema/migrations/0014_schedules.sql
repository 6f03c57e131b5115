-- Schedules: rules that make jobs. Workers compute the ticks of a rule; the database decides about each, once.
create table faultline.schedules (
  -- Ticks belong to it: a schedule that gets another name keeps its history.
  id bigint generated always as identity primary key,
  name text not null,
  -- What holds: the rule (cron with tz, every, or at), the job, and what to do about missed ticks and overlaps.
  -- As json: the text of the arguments is kept as it was given.
  spec json not null,
  -- What the code says. Null: it was made at run time.
  declared json,
  -- Of the declaration. Only workers that have it decide about ticks. Null: all workers do.
  digest text,
  -- Its name before, as the code says.
  was text,
  -- Somebody has chosen another spec than the code has.
  overridden boolean not null default false,
  -- Of everything but its position: who has computed from another revision decides nothing.
  revision bigint not null default 1,
  -- The next tick to decide about. Null: none is known, or it has ended.
  next_at timestamptz,
  -- Without a next tick: ticks after this moment count.
  since timestamptz not null,
  -- The last tick that was decided about.
  last_at timestamptz,
  -- When a worker should look at it. Null: it is paused, or has ended.
  look_at timestamptz,
  ended_at timestamptz,
  -- Its jobs that had not ended when it was last looked at, the newest at the end.
  jobs uuid[] not null default '{}',
  paused_at timestamptz,
  -- How often in a row its ticks could not be decided about, since when, and why.
  failures integer not null default 0,
  failed_at timestamptz,
  last_error text,
  created_at timestamptz not null,
  -- Who last set, paused, resumed or declared it, and why.
  changed_at timestamptz not null,
  changed_by text,
  reason text,
  constraint schedules_name unique (name),
  constraint sane_name check (length(name) between 1 and 200),
  constraint paused_is_not_looked_at check (paused_at is null or look_at is null),
  constraint ended_is_not_looked_at check (ended_at is null or look_at is null),
  constraint code_has_a_digest check ((declared is null) = (digest is null))
) with (fillfactor = 70);
create index schedules_due on faultline.schedules (look_at);

-- What was decided about each tick. Its primary key is why no tick makes two jobs, whoever computes what.
create table faultline.ticks (
  schedule_id bigint not null,
  at timestamptz not null,
  -- tick: one tick. missed: a run of ticks that nobody decided about in time. manual: not a tick, somebody ran it then.
  kind text not null,
  outcome text not null,
  decided_at timestamptz not null,
  job_id uuid,
  -- missed: the last one of the run, and how many there are.
  last_at timestamptz,
  ticks bigint,
  primary key (schedule_id, at, kind),
  constraint known_kind check (kind in ('tick', 'missed', 'manual')),
  constraint known_outcome check (outcome in ('fired', 'skipped', 'backfilled', 'missed', 'manual')),
  constraint a_run_has_an_end check ((kind = 'missed') = (last_at is not null and ticks is not null))
);
create index ticks_decided on faultline.ticks (decided_at);

-- Digests of the declarations that a worker's code has. Null: it has not said, as workers of older builds.
alter table faultline.workers add column schedules text[];
-- Not valid, so that nobody waits while the whole journal is read: `migrate` validates it afterwards, beside running work.
alter table faultline.journal drop constraint known_event;
alter table faultline.journal add constraint known_event check (event in (
  'attempt_failed', 'lease_reaped', 'stale_write_blocked', 'cancelled', 'retried', 'worker_lost', 'recovered', 'reconciled',
  'paused', 'resumed', 'api_key_added', 'api_key_revoked', 'setting_changed',
  'program_changed', 'started_over', 'forked', 'signalled', 'subscribed', 'unsubscribed',
  'schedule_failed'
)) not valid;
