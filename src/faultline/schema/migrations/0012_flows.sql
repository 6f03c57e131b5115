-- Flows: jobs that wait, have children, receive signals and go on. A plain job stores nothing for them: the hot tables get
-- nullable columns only, and no index names these.
alter table faultline.open_jobs
  -- The job at the root of its flow. Null: this job has neither waited nor called, nor is it a child.
  add column flow_id uuid,
  -- The call of its parent that its end counts for.
  add column call_id bigint,
  -- Further calls wait for its end: see edges.
  add column watched boolean,
  -- It gave its lease back to wait. next_run_at says when it stops waiting.
  add column suspended boolean;
alter table faultline.ledger
  -- Such a row is pruned with its flow, not by its own age.
  add column flow_id uuid,
  -- What the job said last of how far it was.
  add column progress jsonb;

-- One row per flow: what `prune` walks, and what a list of flows shows.
create table faultline.flows (
  id uuid primary key,
  begun_at timestamptz not null,
  -- It cannot be pruned before its retention time has passed since then: its root had not ended, or ended then.
  live_at timestamptz not null default clock_timestamp(),
  -- Its members are being deleted, a bite at a time.
  pruning boolean not null default false
) with (autovacuum_vacuum_scale_factor = 0.02);
create index flows_live on faultline.flows (live_at);

-- What a program called, in its order: steps, waits, children. A call without `ended_at` is begun, and may be waited for.
-- Once it has ended it is history, and never changes.
create table faultline.calls (
  id bigint generated always as identity primary key,
  job_id uuid not null,
  -- The position in the program: a path of numbers, one per branch: '3', '3.1.2'.
  number text not null,
  kind text not null,
  name text not null,
  -- Of the arguments: with others, the program has changed.
  digest text,
  -- Of the attempt that came to it first, and of the one that ended it.
  fencing_token bigint not null,
  begun_at timestamptz not null,
  -- The job is suspended until this call, or another that is awaited, is over.
  awaited boolean not null default false,
  -- One of several that are waited for together: the job goes on when all of these are over. Otherwise one is enough.
  together boolean,
  -- When it is over at the latest. Set when the program first came to it.
  until timestamptz,
  -- children: raise, keep, fast. after: cancel, run.
  policy text,
  -- signal: only what was sent after the program first came to this call.
  fresh boolean,
  -- How many children it has when all are enqueued, and how many are.
  total integer,
  spawned integer not null default 0,
  -- The index of the child that was found open when it was last looked at: the next look begins there.
  open_index integer,
  tries integer not null default 0,
  ended_at timestamptz,
  outcome text,
  result jsonb,
  error text,
  constraint calls_number unique (job_id, number),
  constraint sane_number check (number ~ '^[0-9]+([.][0-9]+)*$' and length(number) <= 200),
  constraint sane_name check (length(name) between 1 and 200),
  constraint known_kind check (kind in (
    'step', 'atomic', 'sleep', 'signal', 'children', 'detached', 'watch', 'after', 'race', 'patch', 'saga', 'retry'
  )),
  constraint known_policy check (policy in ('raise', 'keep', 'fast', 'cancel', 'run')),
  constraint known_outcome check (outcome in ('done', 'failed', 'timeout', 'closed')),
  constraint ended_has_outcome check ((ended_at is null) = (outcome is null)),
  constraint token_positive check (fencing_token >= 0)
) with (fillfactor = 70);
create index calls_awaited on faultline.calls (job_id) where awaited;
-- The inbox: what waits for a signal.
create index calls_signals on faultline.calls (name, begun_at) where awaited and kind = 'signal';

-- Which jobs a call waits for: children, jobs that it watches, what a job of a graph comes after.
create table faultline.edges (
  call_id bigint not null,
  index integer not null,
  job_id uuid not null,
  primary key (call_id, index)
);
create index edges_job on faultline.edges (job_id);

create table faultline.signals (
  id bigint generated always as identity primary key,
  job_id uuid not null,
  name text not null,
  payload jsonb,
  -- The same key is taken once per job.
  key text,
  -- Only the call with this number may receive it. Null: the next one that asks for the name.
  for_call text,
  sent_at timestamptz not null,
  sent_by text,
  -- The number of the call that received it.
  received_by text,
  received_at timestamptz,
  constraint sane_name check (length(name) between 1 and 200),
  constraint signals_key unique (job_id, key),
  constraint sane_key check (length(key) between 1 and 500)
);
create index signals_kept on faultline.signals (job_id, name, id) where received_by is null;

-- Notes that a job should be looked at. Those who cause them only insert, so nobody waits for anybody.
create table faultline.nudges (
  id bigint generated always as identity primary key,
  job_id uuid not null,
  -- 0: look whether it can go on. 1: look for failed children too.
  kind smallint not null,
  -- The transaction that wrote it: `resolve` finds those that commit late.
  xid xid8 not null default pg_current_xact_id(),
  at timestamptz not null default clock_timestamp(),
  -- Its job's row was locked: look again then.
  not_before timestamptz,
  looks integer not null default 0
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, vacuum_truncate = off);
create index nudges_xid on faultline.nudges (xid, id);

-- Jobs whose open children are to be cancelled, a bite at a time.
create table faultline.sweeps (
  id bigint generated always as identity primary key,
  job_id uuid not null,
  -- Of this call only. Null: of all calls.
  call_id bigint,
  -- Children up to here are done, in the order of (call_id, index).
  at_call bigint not null default 0,
  at_index integer not null default 0,
  -- The first child that was locked when it was come to: the sweep goes back to it.
  missed_call bigint,
  missed_index integer,
  reason text,
  at timestamptz not null default clock_timestamp()
) with (autovacuum_vacuum_scale_factor = 0.02, vacuum_truncate = off);
create index sweeps_job on faultline.sweeps (job_id);

-- What running jobs write for readers to follow. A later attempt writes again what an earlier one had not put on record:
-- a row with a greater token and a position that was there before says from where.
create table faultline.streams (
  job_id uuid not null,
  name text not null,
  fencing_token bigint not null,
  -- Of its first item in the stream, from 0.
  position integer not null,
  -- The items that were sent together: a JSON array.
  chunk jsonb not null,
  -- All items up to and with these.
  bytes integer not null,
  written_at timestamptz not null,
  primary key (job_id, name, fencing_token, position),
  constraint sane_name check (length(name) between 1 and 200)
);

-- Which tasks a published topic enqueues. A publisher needs none of their code.
create table faultline.subscriptions (
  topic text not null,
  task faultline.task_name not null,
  -- Options of the job as for enqueue_many: queue, priority, max_attempts, lease_seconds …
  options jsonb not null default '{}',
  -- The fields of a payload that become arguments. Null: all.
  takes text[],
  subscribed_at timestamptz not null,
  primary key (topic, task),
  constraint sane_topic check (length(topic) between 1 and 200)
);

-- How long flows are kept after their root has ended; if it ended badly, at least as long as failed jobs. By default as
-- long as other succeeded jobs: each prune of the ledger reads the pages of rows that are kept longer.
alter table faultline.settings add column keep_flows_seconds bigint not null default 604800;
-- Not valid, so that nobody waits while the whole journal is read: `migrate` validates it afterwards, beside running work.
alter table faultline.journal drop constraint known_event;
alter table faultline.journal add constraint known_event check (event in (
  'attempt_failed', 'lease_reaped', 'stale_write_blocked', 'cancelled', 'retried', 'worker_lost', 'recovered', 'reconciled',
  'paused', 'resumed', 'api_key_added', 'api_key_revoked', 'setting_changed',
  'program_changed', 'started_over', 'forked', 'signalled', 'subscribed', 'unsubscribed'
)) not valid;
