-- What people who operate the queues need beside the protocol. Nothing here decides about a job, except that a paused queue
-- grants none.

-- A queue is any name that a job was enqueued under. It has a row here once somebody has paused it.
create table faultline.queues (
  name text primary key,
  paused_at timestamptz,
  paused_because text,
  constraint sane_name check (length(name) between 1 and 100),
  constraint sane_reason check (length(paused_because) <= 1000)
);

-- What each worker did, by queue and minute. A worker writes its own rows, with what it counted since the minute began: sent
-- twice, they say the same. `worker` is empty in rows that were rolled up, and `minute` is -infinity in the oldest of those,
-- so that the sum over all rows of a queue only ever grows. The queue comes first in the key: there are few of them, and
-- whoever asks about one reads its latest minutes in a row.
create table faultline.tallies (
  queue text not null,
  minute timestamptz not null,
  worker text not null,
  started bigint not null default 0,
  succeeded bigint not null default 0,
  failed bigint not null default 0,
  retried bigint not null default 0,
  released bigint not null default 0,
  -- Leases that this worker let go of, or was told that it had lost.
  lost bigint not null default 0,
  refused bigint not null default 0,
  -- Jobs that this worker took back from dead ones.
  recovered bigint not null default 0,
  wait_seconds_sum double precision not null default 0,
  run_seconds_sum double precision not null default 0,
  -- How many jobs waited, and ran, up to each bound (core/buckets.py) and longer than the one before; the last are the rest.
  waits bigint[] not null default '{}',
  runs bigint[] not null default '{}',
  primary key (queue, minute, worker)
) with (fillfactor = 70);
-- What `roll_up` walks.
create index tallies_own on faultline.tallies (minute) where worker <> '';

-- How much waited, by queue and minute. Counting a million jobs takes a fifth of a second, so it is done now and then and
-- remembered; within a minute the newest sample stands.
create table faultline.samples (
  queue text not null,
  minute timestamptz not null,
  sampled_at timestamptz not null,
  due bigint not null,
  delayed bigint not null,
  running bigint not null,
  failed bigint not null,
  oldest_due_at timestamptz,
  primary key (queue, minute)
) with (fillfactor = 70);

-- When the queues were last counted, and what that took: the next time is put off by a multiple of it. One row.
create table faultline.sampling (
  only_row boolean primary key default true check (only_row),
  sampled_at timestamptz not null default '-infinity',
  took_seconds double precision not null default 0
);
insert into faultline.sampling default values;

-- Keys of the HTTP API. Only a digest is kept: a key is 256 random bits, so nothing is gained by a slow one.
create table faultline.api_keys (
  id uuid primary key,
  digest bytea not null unique,
  name text not null,
  scopes text[] not null,
  -- The queues whose jobs it may see and touch; null means all.
  queues text[],
  created_at timestamptz not null,
  expires_at timestamptz,
  revoked_at timestamptz,
  last_used_at timestamptz,
  constraint digest_is_sha256 check (length(digest) = 32),
  constraint sane_name check (length(name) between 1 and 100),
  constraint known_scopes check (cardinality(scopes) > 0 and scopes <@ array['read', 'enqueue', 'operate', 'admin']),
  constraint sane_queues check (queues is null or (cardinality(queues) > 0 and array_position(queues, null) is null))
);

-- The trace that a job was enqueued in, as W3C writes it. Null unless its client traces. It goes with the open row.
alter table faultline.open_jobs add column trace text;

-- What a beat tells beside being alive.
alter table faultline.workers add column leases integer not null default 0;
-- The worker's own clock, ahead of the database's. Nothing is decided by it.
alter table faultline.workers add column clock_ahead_seconds double precision;
