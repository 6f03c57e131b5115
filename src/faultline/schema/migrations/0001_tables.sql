-- The tables of the protocol. Nobody writes them directly: the functions do, and guards.sql refuses what no function does.

-- What one value may be, by itself. A rule of a domain is looked up once in a session; a rule of a table is read and compiled
-- anew for each statement, which took a tenth of the time of enqueuing one job, and as much of claiming it.
create domain faultline.state as text constraint known_state check (value in ('queued', 'running', 'failed', 'cancelled'));
create domain faultline.token as bigint constraint token_not_negative check (value >= 0);
create domain faultline.priority as smallint constraint sane_priority check (value between -1000 and 1000);
create domain faultline.max_attempts as smallint constraint sane_max_attempts check (value between 1 and 1000);
create domain faultline.lease_seconds as real constraint sane_lease check (value between 0.1 and 86400);
create domain faultline.queue_name as text constraint sane_queue check (length(value) between 1 and 100);
create domain faultline.task_name as text constraint sane_task check (length(value) between 1 and 200);

-- Work not done. What a claim changes stands together, behind all that it leaves alone: PostgreSQL logs an update that stays on
-- its page as the difference from the old row, so the order of columns is bytes of WAL.
create table faultline.open_jobs (
  id uuid primary key,
  created_at timestamptz not null,
  next_run_at timestamptz not null,
  lease_seconds faultline.lease_seconds not null,
  priority faultline.priority not null,
  max_attempts faultline.max_attempts not null,
  keep_args boolean not null,
  queue faultline.queue_name not null,
  task faultline.task_name not null,
  idempotency_key text,
  -- Kept as text: smaller than jsonb, and sent to workers as it is.
  args json not null,
  -- what a claim changes
  fencing_token faultline.token not null default 0,
  claimed_at timestamptz,
  lease_expires_at timestamptz,
  renewals integer not null default 0,
  attempt smallint not null default 0,
  reaps smallint not null default 0,
  started boolean not null default false,
  state faultline.state not null default 'queued',
  lease_owner text,
  -- what is rarely or never set
  finished_at timestamptz,
  last_error text,
  progress jsonb,

  constraint running_means_leased check (
    (state = 'running') = (lease_owner is not null) and (state = 'running') = (lease_expires_at is not null)
  ),
  constraint finished_means_ended check ((finished_at is not null) = (state in ('failed', 'cancelled'))),
  constraint attempts_in_bounds check (attempt between 0 and max_attempts),
  constraint running_means_token check (state <> 'running' or (fencing_token >= 1 and attempt >= 1))
) with (
  -- Room on the page for the claim's new row version: its log record then holds only what changed.
  fillfactor = 45,
  -- Every job leaves two dead rows behind; vacuum early, often and at full speed, and never take the exclusive
  -- lock that giving back empty pages needs.
  autovacuum_vacuum_scale_factor = 0.02,
  autovacuum_vacuum_threshold = 2000,
  autovacuum_vacuum_insert_scale_factor = 0.2,
  autovacuum_vacuum_cost_delay = 0,
  vacuum_truncate = off
);

-- What `claim` walks: one range per priority.
create index open_jobs_ready on faultline.open_jobs (queue, priority, next_run_at, id) where state = 'queued';
-- What `reap` walks.
create index open_jobs_leases on faultline.open_jobs (lease_expires_at) where state = 'running';
-- What people look through and `prune` forgets. Only jobs that ended badly are in it, so the hot path never writes to it.
create index open_jobs_ended on faultline.open_jobs (finished_at) where state in ('failed', 'cancelled');

-- Work done: each succeeded job exactly once. Append-only, except for pruning by age.
create table faultline.ledger (
  job_id uuid primary key,
  fencing_token bigint not null,
  created_at timestamptz not null,
  claimed_at timestamptz not null,
  finished_at timestamptz not null,
  priority smallint not null,
  attempt smallint not null,
  max_attempts smallint not null,
  owner text not null,
  queue text not null,
  task text not null,
  idempotency_key text,
  args json,
  result jsonb,
  constraint token_positive check (fencing_token >= 1)
) with (
  -- Pages that `prune` took rows from are read by each prune, until they are vacuumed.
  autovacuum_vacuum_scale_factor = 0.02
);
-- Compressed when it was enqueued, if it could be, and taken over as it is: to try again costs more than all the rest.
alter table faultline.ledger alter args set storage external;
-- Nearly free to keep, and enough to find old rows: the table fills in the order of time.
create index ledger_finished on faultline.ledger using brin (finished_at) with (pages_per_range = 32, autosummarize = on);

-- What went wrong on the way. A job that simply succeeds writes nothing here.
create table faultline.journal (
  id bigint generated always as identity primary key,
  at timestamptz not null,
  job_id uuid,
  event text not null,
  fencing_token bigint,
  owner text,
  detail jsonb not null default '{}',
  constraint known_event check (event in (
    'attempt_failed', 'lease_reaped', 'stale_write_blocked', 'cancelled', 'retried', 'worker_lost', 'recovered', 'reconciled'
  ))
);
create index journal_job on faultline.journal (job_id, id);
create index journal_at on faultline.journal using brin (at) with (pages_per_range = 32, autosummarize = on);

-- Named effects inside a job, once per job, whichever attempt did them.
create table faultline.steps (
  job_id uuid not null,
  name text not null,
  fencing_token bigint not null,
  recorded_at timestamptz not null,
  result jsonb,
  primary key (job_id, name),
  constraint sane_name check (length(name) between 1 and 200),
  constraint token_positive check (fencing_token >= 1)
);

-- Idempotency keys of submissions. A key outlives its job, so that a late second submission is still recognised.
create table faultline.keys (
  key text primary key,
  job_id uuid not null,
  digest bytea not null,
  created_at timestamptz not null,
  constraint sane_key check (length(key) between 1 and 500)
) with (autovacuum_vacuum_scale_factor = 0.02);
create index keys_created on faultline.keys using brin (created_at) with (pages_per_range = 32, autosummarize = on);

-- One row per worker process. It is beaten every second, so it must stay on its page.
create table faultline.workers (
  id text primary key,
  started_at timestamptz not null,
  beat_at timestamptz not null,
  watched boolean not null,
  pid integer not null,
  host text not null,
  version text not null,
  queues text[] not null,
  sleeping text[] not null,
  constraint sane_id check (length(id) between 1 and 100 and position('/' in id) = 0)
) with (fillfactor = 50);

-- What holds for every client, whatever it was told. One row.
create table faultline.settings (
  only_row boolean primary key default true check (only_row),
  args_bytes_max integer not null default 1048576 check (args_bytes_max between 1024 and 67108864),
  -- The highest token of any job that was pruned.
  token_floor bigint not null default 0 check (token_floor >= 0)
);
insert into faultline.settings default values;

-- What a lease verb answers with: the leases it did nothing for, and why.
-- `busy` means somebody holds the row's lock: ask again. Every other reason is final.
create type faultline.refusal as (
  job_id uuid,
  fencing_token bigint,
  owner text,
  reason text,
  current_token bigint
);
