-- Limits and groups. A plain job in a queue without limits stores nothing for them: the hot tables get nullable columns, and
-- the indexes below have no entry of it. They are built while writers wait, which takes as long as one look at every open job.
alter table faultline.open_jobs
  -- Whose job it is: a tenant, an account, an order.
  add column group_key text,
  -- It waits in its group. Then next_run_at lies in the year 9999, so that no build finds it in the queue itself.
  add column in_group boolean,
  -- Its true time while it waits in its group, or keeps its group's permit and waits for a token of its rate.
  add column group_at timestamptz,
  -- The permits that it holds: 1 of the queue, 2 of its group; above these two bits, the shard that counts them.
  add column counted smallint,
  -- What it last took from a budget ("token", "number"), and by budget which moments it was given to come again, and when it
  -- was told so ("waits").
  add column takes jsonb;
alter table faultline.ledger add column group_key text;
alter table faultline.queues
  -- Claims go by limits and turns. Set when limits are declared or set, and never by an enqueue.
  add column limited boolean not null default false,
  add column shards smallint not null default 1;

-- What `claim` walks in a group.
create index open_jobs_groups on faultline.open_jobs (queue, group_key, priority, group_at, id) where in_group;
-- Jobs of groups that are not in their group: delayed, retried, given back. Those that kept a permit stand apart.
create index open_jobs_arriving on faultline.open_jobs (queue, counted, next_run_at, id)
  where state = 'queued' and group_key is not null and in_group is null;
-- What people look at: the jobs of one group that have not succeeded. Only jobs with a group are in it. The ledger has none like
-- it: to build that, every verb would wait until all of it was read.
create index open_jobs_of_group on faultline.open_jobs (group_key, id) where group_key is not null;

-- What a queue (group ''), each of its groups ('*') or one group may do.
create table faultline.limits (
  queue text not null,
  group_key text not null,
  -- By the code.
  declared jsonb not null default '{}',
  -- By people: it wins, field by field. A field that is null takes the limit away.
  override jsonb not null default '{}',
  -- Both together.
  effective jsonb not null default '{}',
  changed_at timestamptz not null default clock_timestamp(),
  changed_by text,
  reason text,
  primary key (queue, group_key),
  constraint sane_queue check (length(queue) between 1 and 100),
  constraint sane_group check (length(group_key) between 0 and 200)
);

-- What a queue has granted. The row of a shard is its lock: who grants or counts holds it until the commit.
-- `epoch` is the second of the last change. While a session holds an old snapshot, dead versions cannot be removed, and by
-- the other columns alone a look would walk them all: this one begins at the newest.
create table faultline.shards (
  queue text not null,
  shard smallint not null,
  epoch bigint not null,
  -- Permits given out, less what was heard of. At most `quota` of the queue's, plus what other shards lent.
  holding integer not null default 0,
  lent integer not null default 0,
  tokens double precision,
  refilled_at timestamptz,
  -- Somebody waited for a permit of the queue when the last claim ended.
  hungry boolean not null default false,
  -- The events of these transactions were not visible when events were last heard: all from `seen_to` on, and `seen_open`.
  seen_to xid8 not null default '0',
  seen_open xid8[] not null default '{}',
  heard_all_at timestamptz not null default '-infinity',
  -- Transaction numbers mean nothing in another cluster, or after a restore.
  cluster text not null default '',
  -- The position of the group that was served last: groups that come in begin here.
  turn double precision not null default 0,
  primary key (queue, shard, epoch)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

-- Groups that have, or had lately, jobs in a queue with limits. Written under the lock of their shard only.
create table faultline.groups (
  group_key text not null,
  queue text not null,
  epoch bigint not null,
  shard smallint not null,
  holding integer not null default 0,
  -- holding / weight: groups are served by it, then by their turn.
  load double precision not null default 0,
  turn double precision not null default 0,
  -- Jobs may wait in it.
  more boolean not null default false,
  -- Jobs may wait in it, and one may be granted.
  ready boolean not null default false,
  -- Not ready until then: for its next token, or because somebody had locked its jobs.
  not_before timestamptz,
  tokens double precision,
  refilled_at timestamptz,
  -- No job waits up to this position.
  head_priority smallint not null default -32768,
  head_at timestamptz not null default '-infinity',
  head_id uuid not null default '00000000-0000-0000-0000-000000000000',
  primary key (group_key, queue, epoch)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
create index groups_turns on faultline.groups (queue, shard, load, turn, group_key) where ready;
create index groups_later on faultline.groups (queue, shard, not_before) where not_before is not null;

-- What `fold` forgets.
create index groups_idle on faultline.groups (queue, shard, epoch) where not more and holding = 0;

-- Notes of what happened to groups: a permit is free, a job came in. Those who cause them only insert, so nobody waits for a
-- limit but claims. One tells of up to a hundred groups: to write, find and remove a row for each would cost as much again.
create table faultline.group_events (
  queue text not null,
  shard smallint not null,
  xid xid8 not null default pg_current_xact_id(),
  -- Permits of the queue.
  freed integer not null default 0,
  -- The groups that it tells of, and how many.
  group_count smallint not null default 0,
  group_keys text[],
  -- Permits of each.
  freed_groups integer[],
  -- Of the first job that came into each. Null: none did.
  priorities smallint[],
  run_ats timestamptz[]
) with (
  autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, vacuum_truncate = off,
  -- A hundred keys are not compressed.
  toast_tuple_target = 8160
);
create index group_events_xid on faultline.group_events (queue, shard, xid);

-- Buckets of tokens that running jobs take from: see take_budget. The row is locked for the one statement that takes.
create table faultline.budgets (
  name text not null,
  -- By the code: {"rate", "per", "burst"}.
  declared jsonb not null default '{}',
  -- By people: it wins.
  override jsonb not null default '{}',
  effective jsonb not null default '{}',
  changed_at timestamptz not null default clock_timestamp(),
  changed_by text,
  reason text,
  -- What was in it then. Null: it was never taken from, and is full.
  tokens double precision,
  refilled_at timestamptz,
  -- Jobs that wait were given moments up to this one, as far apart as their costs need.
  line_until timestamptz not null default '-infinity',
  -- The job that is served next, since when it has waited, and until when its cost is kept for it.
  next_job uuid,
  next_since timestamptz,
  next_cost double precision,
  next_until timestamptz,
  -- Since then more may be taken than before: who was told to wait before that asks again.
  raised_at timestamptz,
  primary key (name),
  constraint sane_budget check (length(name) between 1 and 100)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

-- The budgets that the code of a worker declares. Null: it does not say.
alter table faultline.workers add column budgets text[];

-- A job as `claim` returns it.
create type faultline.claimed as (
  job_id uuid,
  fencing_token faultline.token,
  task faultline.task_name,
  args json,
  attempt smallint,
  max_attempts faultline.max_attempts,
  mark_start boolean,
  reaps smallint,
  priority faultline.priority,
  next_run_at timestamptz,
  lease_seconds faultline.lease_seconds,
  idempotency_key text,
  in_flow boolean,
  group_key text
);

-- Not valid, so that nobody waits while the whole journal is read: `migrate` validates it afterwards, beside running work.
alter table faultline.journal drop constraint known_event;
alter table faultline.journal add constraint known_event check (event in (
  'attempt_failed', 'lease_reaped', 'stale_write_blocked', 'cancelled', 'retried', 'worker_lost', 'recovered', 'reconciled',
  'paused', 'resumed', 'api_key_added', 'api_key_revoked', 'setting_changed',
  'program_changed', 'started_over', 'forked', 'signalled', 'subscribed', 'unsubscribed',
  'schedule_failed', 'expired', 'superseded', 'replaced', 'limit_changed', 'permits_recounted'
)) not valid;
