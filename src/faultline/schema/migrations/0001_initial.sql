-- What is stored. Nobody writes these tables directly: the functions do, and guards.sql refuses what no function does.
-- By subject: values, jobs, uniqueness, journal, workers, settings, flows, schedules, limits, measures, access.


-- Values. What one value may be, by itself. A rule of a domain is looked up once in a session; a rule of a table is read and
-- compiled anew for each statement, which took a tenth of the time of enqueuing one job, and as much of claiming it.

create domain faultline.state as text constraint known_state check (value in ('queued', 'running', 'failed', 'cancelled'));
create domain faultline.token as bigint constraint token_not_negative check (value >= 0);
create domain faultline.priority as smallint constraint sane_priority check (value between -1000 and 1000);
create domain faultline.max_attempts as smallint constraint sane_max_attempts check (value between 1 and 1000);
create domain faultline.lease_seconds as real constraint sane_lease check (value between 0.1 and 86400);
create domain faultline.queue_name as text constraint sane_queue check (length(value) between 1 and 100);
create domain faultline.task_name as text constraint sane_task check (length(value) between 1 and 200);


-- Jobs

-- Work not done. What a claim changes stands together, behind all that it leaves alone: PostgreSQL logs an update that stays on
-- its page as the difference from the old row, so the order of columns is bytes of WAL. A plain job stores nothing in the columns
-- of flows, uniqueness and groups, and the indexes that name them have no entry of it.
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
  -- The trace that it was enqueued in, as W3C writes it. Null unless its client traces. It goes with the open row.
  trace text,
  -- Flows. The job at the root of its flow. Null: this job has neither waited nor called, nor is it a child.
  flow_id uuid,
  -- The call of its parent that its end counts for.
  call_id bigint,
  -- Further calls wait for its end: see edges.
  watched boolean,
  -- It gave its lease back to wait. next_run_at says when it stops waiting.
  suspended boolean,
  -- It failed by the errors of these calls: a retry opens them again.
  stopped_by text[],
  -- Uniqueness. Cancelled if no worker has claimed it by then. Null: never.
  expires_at timestamptz,
  -- What it is unique by, in its queue: see unique_keys.
  unique_key text,
  -- Groups. Whose job it is: a tenant, an account, an order.
  group_key text,
  -- It waits in its group. Then next_run_at lies in the year 9999, so that nobody finds it in the queue itself.
  in_group boolean,
  -- Its true time while it waits in its group, or keeps its group's permit and waits for a token of its rate.
  group_at timestamptz,
  -- It holds a permit: of its queue while it runs, and of its group. In a group that keeps its order, it keeps that of the group
  -- while it waits for another attempt. Otherwise null.
  has_permit boolean,
  -- What it last took from a budget ("token", "number"), and by budget which moments it was given to come again, and when it
  -- was told so ("waits").
  takes jsonb,

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
-- What `expire` walks. A job that was claimed once no longer expires, and is not in it.
create index open_jobs_expiry on faultline.open_jobs (expires_at)
  where state = 'queued' and expires_at is not null and fencing_token = 0;
-- What `claim` walks in a group.
create index open_jobs_groups on faultline.open_jobs (queue, group_key, priority, group_at, id) where in_group;
-- Jobs of groups that are not in their group: delayed, retried, given back. Those that kept a permit stand apart.
create index open_jobs_arriving on faultline.open_jobs (queue, has_permit, next_run_at, id)
  where state = 'queued' and group_key is not null and in_group is null;
-- What people look at: the jobs of one group that have not succeeded. Only jobs with a group are in it.
create index open_jobs_of_group on faultline.open_jobs (group_key, id) where group_key is not null;

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
  -- Such a row is pruned with its flow, not by its own age.
  flow_id uuid,
  -- What the job said last of how far it was.
  progress jsonb,
  group_key text,
  constraint token_positive check (fencing_token >= 1)
) with (
  -- Pages that `prune` took rows from are read by each prune, until they are vacuumed.
  autovacuum_vacuum_scale_factor = 0.02
);
-- Compressed when it was enqueued, if it could be, and taken over as it is: to try again costs more than all the rest.
alter table faultline.ledger alter args set storage external;
-- Nearly free to keep, and enough to find old rows: the table fills in the order of time.
create index ledger_finished on faultline.ledger using brin (finished_at) with (pages_per_range = 32, autosummarize = on);

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

-- A job as `claim` returns it.
create type faultline.claimed as (
  job_id uuid,
  fencing_token faultline.token,
  task faultline.task_name,
  args json,
  attempt smallint,
  max_attempts faultline.max_attempts,
  needs_start_record boolean,
  reaps smallint,
  priority faultline.priority,
  next_run_at timestamptz,
  lease_seconds faultline.lease_seconds,
  idempotency_key text,
  in_flow boolean,
  group_key text
);

-- What a lease verb answers with: the leases it did nothing for, and why.
-- `busy` means somebody holds the row's lock: ask again. Every other reason is final.
create type faultline.refusal as (
  job_id uuid,
  fencing_token bigint,
  owner text,
  reason text,
  current_token bigint
);

-- A job whose worker has lost it, and how `reap` judges that: see lost_jobs.
create type faultline.lost_job as (
  job_id uuid,
  owner text,
  lease_expires_at timestamptz,
  started boolean,
  guilty boolean,
  spent boolean,
  excused boolean,
  reason text
);


-- Uniqueness

-- Idempotency keys of submissions. A key outlives its job, so that a late second submission is still recognised.
create table faultline.keys (
  key text primary key,
  job_id uuid not null,
  digest bytea not null,
  created_at timestamptz not null,
  constraint sane_key check (length(key) between 1 and 500)
) with (autovacuum_vacuum_scale_factor = 0.02);
create index keys_created on faultline.keys using brin (created_at) with (pages_per_range = 32, autosummarize = on);

-- Keys of unique jobs. Judged when somebody enqueues, never when jobs are claimed or end: so others pay nothing.
create table faultline.unique_keys (
  queue text not null,
  key text not null,
  -- The key is one of its task: the job of another task does other work.
  task text not null,
  -- The job that was last made for it.
  job_id uuid not null,
  -- When that was.
  at timestamptz not null,
  -- Another is not made before then, whatever became of the job. Null: there is no such time.
  until timestamptz,
  primary key (queue, key, task),
  constraint sane_key check (length(key) between 1 and 500)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);
-- What `prune` walks. Those that must be kept, for a period or because their job is open, stand behind those that need not.
create index unique_keys_kept on faultline.unique_keys ((greatest(at, until)));


-- Journal

-- What went wrong on the way, and what people did. A job that simply succeeds writes nothing here.
create table faultline.journal (
  id bigint generated always as identity primary key,
  at timestamptz not null,
  job_id uuid,
  event text not null,
  fencing_token bigint,
  owner text,
  detail jsonb not null default '{}',
  constraint known_event check (event in (
    -- of attempts and leases
    'attempt_failed', 'lease_reaped', 'stale_write_blocked', 'cancelled', 'retried', 'worker_lost', 'recovered', 'reconciled',
    -- of people who operate
    'paused', 'resumed', 'api_key_added', 'api_key_revoked', 'setting_changed',
    -- of flows
    'program_changed', 'continued_as_new', 'forked', 'signalled', 'subscribed', 'unsubscribed', 'undo_begun',
    -- of schedules, uniqueness, limits
    'schedule_failed', 'expired', 'superseded', 'replaced', 'limit_changed', 'permits_recounted', 'group_deadlock_broken'
  ))
);
create index journal_job on faultline.journal (job_id, id);
create index journal_at on faultline.journal using brin (at) with (pages_per_range = 32, autosummarize = on);


-- Workers

-- One row per worker process. It is beaten every second, so it must stay on its page.
create table faultline.workers (
  id text primary key,
  started_at timestamptz not null,
  heartbeat_at timestamptz not null,
  watched boolean not null,
  pid integer not null,
  host text not null,
  version text not null,
  queues text[] not null,
  sleeping text[] not null,
  leases integer not null default 0,
  -- The worker's own clock, ahead of the database's. Nothing is decided by it.
  clock_ahead_seconds double precision,
  -- What it announces, once it has started. Null: it has not said.
  -- The tasks that it knows.
  tasks text[],
  -- How many connections it may have open at once.
  connections_max integer,
  -- Digests of the declarations of schedules that its code has.
  schedules text[],
  -- The budgets that its code declares.
  budgets text[],
  -- The queues that its code declares.
  limits text[],
  -- Schedules that its code declares otherwise than what is in force, when it last declared them: see declare_schedules.
  waiting_schedules text[],
  constraint sane_id check (length(id) between 1 and 100 and position('/' in id) = 0)
) with (fillfactor = 50);


-- Settings

-- What holds for every client, whatever it was told. One row.
create table faultline.settings (
  only_row boolean primary key default true check (only_row),
  args_bytes_max integer not null default 1048576 check (args_bytes_max between 1024 and 67108864),
  -- The highest token of any job that was pruned.
  token_floor bigint not null default 0 check (token_floor >= 0),
  -- On which run of the server workers were last judged by their silence, and since when: see `server_run` and `dead_workers`.
  server_run text not null default '',
  server_run_noticed_at timestamptz not null default '-infinity',
  -- When `recover` last ran, and until when no job of a queue with limits is claimed because of it.
  recovered_at timestamptz,
  limits_held_until timestamptz,
  -- So long from when `recover` was called.
  limits_held_for interval,
  result_bytes_max integer not null default 1048576,
  -- How long workers keep what has ended.
  keep_succeeded_seconds bigint not null default 604800,
  keep_failed_seconds bigint not null default 2592000,
  keep_journal_seconds bigint not null default 2592000,
  keep_keys_seconds bigint not null default 2592000,
  -- Flows, after their root has ended; if it ended badly, at least as long as failed jobs. By default as long as other succeeded
  -- jobs: each prune of the ledger reads the pages of rows that are kept longer.
  keep_flows_seconds bigint not null default 604800
);
insert into faultline.settings default values;


-- Flows: jobs that wait, have children, receive signals and go on.

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
  -- Of a call that failed or was closed, of a race and of a saga, its end in the order of ids: what began afterwards has a greater one.
  ended_moment bigint,
  -- A retry has opened a call that had ended before this one began: the program may not make this one again.
  doubtful boolean,
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
  -- No program could read others.
  constraint sane_until check (date_part('year', timezone('UTC', until)) between 1970 and 9999),
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
  -- The position at which what this attempt writes begins.
  begins_at integer not null,
  -- Where the program was: for each branch around it, how many calls that had made. See keep_written.
  reach jsonb not null,
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
  constraint sane_next_at check (date_part('year', timezone('UTC', next_at)) between 1970 and 9999),
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
  constraint sane_at check (date_part('year', timezone('UTC', at)) between 1970 and 9999),
  constraint known_outcome check (outcome in ('fired', 'skipped', 'backfilled', 'missed', 'manual')),
  constraint a_run_has_an_end check ((kind = 'missed') = (last_at is not null and ticks is not null))
);
create index ticks_decided on faultline.ticks (decided_at);


-- Limits and groups

-- A queue is any name that a job was enqueued under. It has a row here once somebody has paused it or limited it.
create table faultline.queues (
  name text primary key,
  paused_at timestamptz,
  paused_reason text,
  paused_by text,
  -- Claims go by limits and turns. Set when limits are declared or set, and never by an enqueue.
  limited boolean not null default false,
  constraint sane_name check (length(name) between 1 and 100),
  constraint sane_reason check (length(paused_reason) <= 1000)
);

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

-- What a queue with limits has granted. Its row is its lock: whoever grants or counts holds it until the commit.
-- `changed_second` is the second of the last change. While a session holds an old snapshot, dead versions cannot be removed,
-- and by the other columns alone a look would walk them all: this one begins at the newest.
create table faultline.limited_queues (
  queue text not null,
  changed_second bigint not null,
  -- Permits given out, less the events that were applied.
  holding integer not null default 0,
  tokens double precision,
  refilled_at timestamptz,
  -- Somebody waited for a permit of the queue when the last claim ended.
  has_unmet_demand boolean not null default false,
  -- The last claim had room for more, and stopped before it had looked at everything: the next one goes on.
  unfinished boolean not null default false,
  -- The events of these transactions were not visible when events were last applied: all from `seen_to` on, and `seen_open`.
  seen_to xid8 not null default '0',
  seen_open xid8[] not null default '{}',
  all_events_applied_at timestamptz not null default '-infinity',
  -- Transaction numbers mean nothing in another cluster, or after a restore.
  cluster text not null default '',
  -- The position of the group that was served last.
  virtual_time double precision not null default 0,
  -- Where groups come in: not before the queue's virtual time, and each grant moves it a little. So groups that hold nothing
  -- are served in the order in which they came in, and claims read from the queue's virtual time on, past no group that was
  -- served.
  arrival_virtual_time double precision not null default 0,
  primary key (queue, changed_second)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

-- Groups that have, or had lately, jobs in a queue with limits. Written under the lock of their queue only.
create table faultline.groups (
  group_key text not null,
  queue text not null,
  changed_second bigint not null,
  holding integer not null default 0,
  -- holding / weight: groups are served by it, then by their virtual time.
  holding_per_weight double precision not null default 0,
  virtual_time double precision not null default 0,
  -- Jobs may wait in it.
  has_waiting boolean not null default false,
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
  primary key (group_key, queue, changed_second)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
create index groups_virtual_time on faultline.groups (queue, holding_per_weight, virtual_time, group_key) where ready;
create index groups_later on faultline.groups (queue, not_before) where not_before is not null;

-- What each group of a queue may do. `cap`: how many of its jobs may run at once. `have_own`: some groups have limits of their own.
create type faultline.group_limits as (
  fields jsonb,
  cap integer,
  rate double precision,
  burst double precision,
  weight double precision,
  have_own boolean
);

-- A group as a claim finds it: its limits, and how many of its jobs may be granted now.
create type faultline.ready_group as (
  row_id tid,
  group_key text,
  holding integer,
  virtual_time double precision,
  refilled_at timestamptz,
  head_priority smallint,
  head_at timestamptz,
  head_id uuid,
  cap integer,
  rate double precision,
  weight double precision,
  tokens double precision,
  room integer
);

-- What a claim takes from a group: `jobs` jobs, which are locked, and what is left then.
create type faultline.served_group as (
  row_id tid,
  jobs integer,
  ctids tid[],
  holding integer,
  virtual_time double precision,
  refilled_at timestamptz,
  cap integer,
  rate double precision,
  weight double precision,
  tokens double precision,
  has_more boolean,
  -- Nobody had locked one of them.
  are_first boolean,
  last_priority smallint,
  last_at timestamptz,
  last_id uuid
);

-- What `maintain_limits` forgets.
create index groups_idle on faultline.groups (queue, changed_second) where not has_waiting and holding = 0;

-- Notes of what happened to groups: a permit is free, a job came in. Those who cause them only insert, so nobody waits for a
-- limit but claims. One tells of up to a hundred groups: to write, find and remove a row for each would cost as much again.
create table faultline.group_events (
  queue text not null,
  -- It tells of jobs that came in, and of no permit. Claims read both kinds side by side: however many jobs came in while no
  -- worker ran, a permit that is free is known at once.
  arrival boolean not null default false,
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
create index group_events_xid on faultline.group_events (queue, arrival, xid);

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
  reserved_until timestamptz not null default '-infinity',
  -- The job that is served next, since when it has waited, and until when its cost is kept for it.
  next_job uuid,
  next_since timestamptz,
  next_cost double precision,
  next_until timestamptz,
  -- Since then more may be taken than before: who was told to wait before that asks again.
  raised_at timestamptz,
  -- Jobs that were locked when the budget was raised, and may wait for too long: see wake_budget_waiters.
  asleep uuid[],
  primary key (name),
  constraint sane_budget check (length(name) between 1 and 100)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);


-- Measures

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
  rescheduled bigint not null default 0,
  released bigint not null default 0,
  suspended bigint not null default 0,
  programs_changed bigint not null default 0,
  expired bigint not null default 0,
  -- Leases that this worker let go of, or was told that it had lost.
  lost bigint not null default 0,
  refused bigint not null default 0,
  -- Jobs that this worker took back from dead ones.
  requeued bigint not null default 0,
  wait_seconds_sum double precision not null default 0,
  run_seconds_sum double precision not null default 0,
  -- How many jobs waited, and ran, up to each bound (core/histogram.py) and longer than the one before; the last are the rest.
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
  -- Which of the counts (`due`, `delayed`, `running`, `failed`) are estimates: there was too much to count.
  estimated text[] not null default '{}',
  primary key (queue, minute)
) with (fillfactor = 70);

-- When the queues were last counted, and what that took: the next time is put off by a multiple of it. One row.
create table faultline.sampling (
  only_row boolean primary key default true check (only_row),
  sampled_at timestamptz not null default '-infinity',
  took_seconds double precision not null default 0
);
insert into faultline.sampling default values;


-- Access

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
