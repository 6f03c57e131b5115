-- What the tables refuse, for every login. Verbs never do these things: if one tries, it has a bug.
-- Each rule is a `when` clause of a trigger on the columns it is about: it costs an allowed row next to nothing, and a
-- statement that sets other columns nothing.

create or replace function faultline.refuse_change() returns trigger
language plpgsql
as $$
begin
  raise exception '% on faultline.% is refused: %', lower(tg_op), tg_table_name, tg_argv[0]
    using errcode = 'FL002', hint = 'use the functions of the schema faultline';
end
$$;

create or replace trigger starts_queued
before insert on faultline.open_jobs
for each row
when (
  new.state <> 'queued'
  or new.attempt <> 0
  -- A fork has the history of another job: its tokens begin above those in it.
  or (new.fencing_token <> 0 and coalesce(current_setting('faultline.verb', true), '') <> 'fork')
)
execute function faultline.refuse_change('a new job must be queued, with no attempt and no token');

create or replace trigger legal_transition
before update of state on faultline.open_jobs
for each row
when (
  -- Allowed: running to any state, any state to queued, and queued to running or cancelled.
  old.state <> 'running' and new.state <> 'queued' and old.state <> new.state
  and (old.state <> 'queued' or new.state = 'failed')
)
execute function faultline.refuse_change('illegal state transition: a job that is not running can only be queued, claimed or cancelled');

-- Not refusals: what every verb that ends a lease, or cancels a waiting job, owes to the limits. Plain jobs pay nothing.
create or replace trigger free_permits
before update of state on faultline.open_jobs
for each row
when (old.has_permit and new.state <> 'running')
execute function faultline.free_permits();

create or replace trigger free_permits_of_gone
after delete on faultline.open_jobs
for each row
when (old.has_permit and coalesce(current_setting('faultline.verb', true), '') <> 'complete')
execute function faultline.free_permits();

create or replace trigger leave_group
before update of state on faultline.open_jobs
for each row
when (old.group_at is not null and new.group_at is not null and new.state <> 'queued')
execute function faultline.leave_group();

create or replace trigger token_grows
before update of state, fencing_token on faultline.open_jobs
for each row
when (
  new.fencing_token < old.fencing_token
  or (old.state <> 'running' and new.state = 'running' and new.fencing_token = old.fencing_token)
)
execute function faultline.refuse_change('a token only grows, and every claim needs a new one');

create or replace trigger lease_keeps_its_holder
before update of lease_owner, fencing_token on faultline.open_jobs
for each row
when (
  old.state = 'running' and new.state = 'running'
  and (old.lease_owner <> new.lease_owner or old.fencing_token <> new.fencing_token)
)
execute function faultline.refuse_change('a lease cannot change its owner or token');

create or replace trigger identity_stays
before update of id, task, created_at on faultline.open_jobs
for each row
when (old.id <> new.id or old.task <> new.task or old.created_at <> new.created_at)
execute function faultline.refuse_change('the id, task and creation time of a job cannot change');

-- An after trigger: for a before trigger PostgreSQL would lock each row first, and write WAL for that.
create or replace trigger leaves_by_a_verb
after delete on faultline.open_jobs
for each row
when (coalesce(current_setting('faultline.verb', true), '') not in ('complete', 'prune', 'enqueue', 'reconcile'))
execute function faultline.refuse_change('only complete and prune delete jobs');

create or replace trigger entered_by_complete
before insert on faultline.ledger
for each row
when (coalesce(current_setting('faultline.verb', true), '') <> 'complete')
execute function faultline.refuse_change('only complete writes to the ledger');

create or replace trigger never_rewritten
before update on faultline.ledger
for each row
execute function faultline.refuse_change('ledger rows cannot be changed');

create or replace trigger forgotten_by_prune
before delete on faultline.ledger
for each row
when (coalesce(current_setting('faultline.verb', true), '') <> 'prune')
execute function faultline.refuse_change('only prune deletes rows');

create or replace trigger never_rewritten
before update on faultline.journal
for each row
execute function faultline.refuse_change('journal entries cannot be changed');

create or replace trigger forgotten_by_prune
before delete on faultline.journal
for each row
when (coalesce(current_setting('faultline.verb', true), '') <> 'prune')
execute function faultline.refuse_change('only prune deletes rows');

create or replace trigger recorded_by_step
before insert on faultline.steps
for each row
when (coalesce(current_setting('faultline.verb', true), '') not in ('step', 'fork'))
execute function faultline.refuse_change('only step and fork write steps');

create or replace trigger never_rewritten
before update on faultline.steps
for each row
execute function faultline.refuse_change('stored steps cannot be changed');

create or replace trigger forgotten_by_prune
before delete on faultline.steps
for each row
when (coalesce(current_setting('faultline.verb', true), '') not in ('prune', 'continue_as_new', 'retry'))
execute function faultline.refuse_change('only prune, continue_as_new and retry delete steps');

create or replace trigger forgotten_by_prune
before delete on faultline.keys
for each row
when (coalesce(current_setting('faultline.verb', true), '') <> 'prune')
execute function faultline.refuse_change('only prune deletes rows');

-- Without its row, a second job would be enqueued beside one that is queued.
create or replace trigger forgotten_by_prune
before delete on faultline.unique_keys
for each row
when (coalesce(current_setting('faultline.verb', true), '') <> 'prune')
execute function faultline.refuse_change('only prune deletes rows');

create or replace trigger never_emptied
before truncate on faultline.unique_keys
execute function faultline.refuse_change('unique keys cannot be truncated');

create or replace trigger floor_grows
before update of token_floor on faultline.settings
for each row
when (new.token_floor < old.token_floor)
execute function faultline.refuse_change('the floor of the tokens cannot go down: tokens below it were given out before');

create or replace trigger never_forgotten
before delete on faultline.settings
for each row
execute function faultline.refuse_change('the settings hold the floor of the tokens and cannot be deleted');

create or replace trigger never_emptied
before truncate on faultline.settings
execute function faultline.refuse_change('the settings hold the floor of the tokens and cannot be deleted');

create or replace trigger never_emptied
before truncate on faultline.open_jobs
execute function faultline.refuse_change('open jobs cannot be truncated');

create or replace trigger never_emptied
before truncate on faultline.ledger
execute function faultline.refuse_change('the ledger cannot be truncated');

create or replace trigger never_emptied
before truncate on faultline.journal
execute function faultline.refuse_change('the journal cannot be truncated');

-- Without its row, a step would run again, and a key would enqueue its job again.
create or replace trigger never_emptied
before truncate on faultline.steps
execute function faultline.refuse_change('steps cannot be truncated');

create or replace trigger never_emptied
before truncate on faultline.keys
execute function faultline.refuse_change('idempotency keys cannot be truncated');

-- The history of flows. What a program has passed decides what it does when it runs again, so nobody rewrites it.
-- Column by column: a comparison of rows would be shown in another form after a dump was restored, and count as altered.
create or replace trigger never_rewritten
before update on faultline.calls
for each row
when (
  old.ended_at is not null and coalesce(current_setting('faultline.verb', true), '') <> 'retry'
  -- Why the program stops at a signal is known only afterwards.
  and (
    old.kind <> 'signal' or old.error is not null
    or old.id is distinct from new.id
    or old.job_id is distinct from new.job_id
    or old.number is distinct from new.number
    or old.kind is distinct from new.kind
    or old.name is distinct from new.name
    or old.digest is distinct from new.digest
    or old.fencing_token is distinct from new.fencing_token
    or old.begun_at is distinct from new.begun_at
    or old.until is distinct from new.until
    or old.ended_at is distinct from new.ended_at
    or old.outcome is distinct from new.outcome
    or old.result is distinct from new.result
  )
)
execute function faultline.refuse_change('a call that has ended is history and cannot be changed');

create or replace trigger forgotten_by_prune
before delete on faultline.calls
for each row
when (coalesce(current_setting('faultline.verb', true), '') not in ('prune', 'continue_as_new', 'retry'))
execute function faultline.refuse_change('only prune, continue_as_new and retry delete calls');

create or replace trigger never_rewritten
before update on faultline.edges
for each row
execute function faultline.refuse_change('edges cannot be changed');

create or replace trigger forgotten_by_prune
before delete on faultline.edges
for each row
when (coalesce(current_setting('faultline.verb', true), '') not in ('prune', 'continue_as_new', 'retry'))
execute function faultline.refuse_change('only prune, continue_as_new and retry delete edges');

create or replace trigger never_rewritten
before update on faultline.signals
for each row
when (
  old.received_by is not null and coalesce(current_setting('faultline.verb', true), '') not in ('continue_as_new', 'retry')
  or old.id is distinct from new.id
  or old.job_id is distinct from new.job_id
  or old.name is distinct from new.name
  or old.payload is distinct from new.payload
  or old.key is distinct from new.key
  or old.for_call is distinct from new.for_call
  or old.sent_at is distinct from new.sent_at
  or old.sent_by is distinct from new.sent_by
)
execute function faultline.refuse_change('a signal can only be received, and only once');

create or replace trigger forgotten_by_prune
before delete on faultline.signals
for each row
when (coalesce(current_setting('faultline.verb', true), '') not in ('prune', 'continue_as_new'))
execute function faultline.refuse_change('only prune and continue_as_new delete signals');

create or replace trigger never_rewritten
before update on faultline.streams
for each row
execute function faultline.refuse_change('what was written to a stream cannot be changed');

create or replace trigger forgotten_by_prune
before delete on faultline.streams
for each row
when (coalesce(current_setting('faultline.verb', true), '') not in ('prune', 'continue_as_new', 'stream'))
execute function faultline.refuse_change('only prune, continue_as_new and a later attempt delete chunks of a stream');

create or replace trigger never_rewritten
before update of id, begun_at on faultline.flows
for each row
execute function faultline.refuse_change('flows cannot be changed');

create or replace trigger forgotten_by_prune
before delete on faultline.flows
for each row
when (coalesce(current_setting('faultline.verb', true), '') <> 'prune')
execute function faultline.refuse_change('only prune deletes rows');

-- Without its nudge a job would wait until its time is up, and without its sweep a child would outlive its parent.
create or replace trigger looked_at_by_resolve
before delete on faultline.nudges
for each row
when (coalesce(current_setting('faultline.verb', true), '') not in ('resolve', 'prune'))
execute function faultline.refuse_change('only resolve deletes nudges');

create or replace trigger finished_by_sweep
before delete on faultline.sweeps
for each row
when (coalesce(current_setting('faultline.verb', true), '') not in ('sweep', 'retry', 'prune'))
execute function faultline.refuse_change('only sweep and retry delete sweeps');

create or replace trigger never_emptied
before truncate on faultline.flows
execute function faultline.refuse_change('flows cannot be truncated');

create or replace trigger never_emptied
before truncate on faultline.calls
execute function faultline.refuse_change('calls cannot be truncated');

create or replace trigger never_emptied
before truncate on faultline.edges
execute function faultline.refuse_change('edges cannot be truncated');

create or replace trigger never_emptied
before truncate on faultline.signals
execute function faultline.refuse_change('signals cannot be truncated');

create or replace trigger never_emptied
before truncate on faultline.streams
execute function faultline.refuse_change('streams cannot be truncated');

create or replace trigger never_emptied
before truncate on faultline.nudges
execute function faultline.refuse_change('nudges cannot be truncated');

create or replace trigger never_emptied
before truncate on faultline.sweeps
execute function faultline.refuse_change('sweeps cannot be truncated');

-- A schedule that goes back would make the jobs of its ticks again. Only a new rule, and a person who resumes it, begin anew.
create or replace trigger position_grows
before update of next_at on faultline.schedules
for each row
when (
  new.next_at < old.next_at
  and coalesce(current_setting('faultline.verb', true), '') not in ('change_schedule', 'resume_schedule')
)
execute function faultline.refuse_change('the position of a schedule only moves forward');

create or replace trigger removed_by_a_verb
before delete on faultline.schedules
for each row
when (coalesce(current_setting('faultline.verb', true), '') not in ('remove_schedule', 'prune'))
execute function faultline.refuse_change('only remove_schedule and prune delete schedules');

create or replace trigger recorded_by_a_verb
before insert on faultline.ticks
for each row
when (coalesce(current_setting('faultline.verb', true), '') not in ('tick', 'run_schedule', 'backfill'))
execute function faultline.refuse_change('only tick, run_schedule and backfill record ticks');

create or replace trigger never_rewritten
before update on faultline.ticks
for each row
when (
  coalesce(current_setting('faultline.verb', true), '') not in ('tick', 'backfill')
  or (old.job_id is not null)
)
execute function faultline.refuse_change('a tick that has its job cannot be changed');

create or replace trigger forgotten_by_prune
before delete on faultline.ticks
for each row
when (coalesce(current_setting('faultline.verb', true), '') <> 'prune')
execute function faultline.refuse_change('only prune deletes rows');

create or replace trigger never_emptied
before truncate on faultline.schedules
execute function faultline.refuse_change('schedules cannot be truncated');

-- Without its row, a tick would make its job again.
create or replace trigger never_emptied
before truncate on faultline.ticks
execute function faultline.refuse_change('ticks cannot be truncated');

-- Restore the row if it was deleted without the guards. Its floor is lost: set one above every token, as `recover` does.
insert into faultline.settings (token_floor)
select (extract(epoch from clock_timestamp()) * 1000000)::bigint
where not exists (select from faultline.settings);
