-- Who may do what. Roles may call verbs, not write to tables; the owner of the tables may do everything.
-- Roles belong to the whole cluster: they may exist, another database may be creating them now, or we may lack the
-- right to create them. None of these is an error: without the roles, everything works for the owner.
do $migration$
declare
  wanted text;
begin
  foreach wanted in array array['faultline_producer', 'faultline_worker', 'faultline_viewer', 'faultline_operator'] loop
    begin
      if not exists (select from pg_roles where rolname = wanted) then
        execute format('create role %I nologin', wanted);
      end if;
    exception
      when duplicate_object or unique_violation then
        null;  -- another session has created it
      when insufficient_privilege then
        raise notice 'role % does not exist and may not be created by %; grants to it are skipped', wanted, current_user;
    end;
  end loop;
end
$migration$;

revoke all on all routines in schema faultline from public;
revoke all on all tables in schema faultline from public;
revoke all on schema faultline from public;

do $migration$
declare
  verbs constant jsonb := '{
    "faultline_producer": ["enqueue_flow", "publish", "chunks",
                           "enqueue", "enqueue_one", "enqueue_many", "cancel", "signal"],
    "faultline_worker": ["enqueue_flow", "upstream", "continue_as_new", "fork", "publish", "subscribe", "stream", "chunks",
                         "enqueue", "enqueue_one", "enqueue_many", "claim", "sync_claim", "renew", "complete", "fail", "release", "record_start",
                         "needs_start_record", "fence", "same_transaction", "record_refusal", "step", "recall", "progress", "heartbeat", "unregister_worker",
                         "reap", "first_expired", "due", "reconcile", "prune", "worker_lock", "tally", "sample", "roll_up",
                         "announce", "expire", "program_changed", "wake_changed_programs",
                         "suspend", "resolve", "sweep",
                         "declare_queue", "declare_budget", "take_budget", "limited", "next_claim_at", "yield_to_waiting_worker", "maintain_limits", "recount",
                         "declare_schedules", "stale_schedules", "due_schedules", "tick", "tick_many", "schedule_failed",
                         "record", "history", "spawn", "outcomes", "collect_outcomes", "signal", "receive", "first_over", "watch"],
    "faultline_viewer": ["chunks", "api_key", "error_kind", "sample"],
    "faultline_operator": ["enqueue_flow", "publish", "subscribe", "unsubscribe", "chunks",
                           "enqueue", "enqueue_one", "enqueue_many", "cancel", "cancel_jobs", "retry", "retry_failed", "undo", "fork",
                           "pause", "resume", "change_setting",
                           "reap", "expire", "reconcile", "recover", "prune", "sample", "roll_up", "error_kind",
                           "set_limit", "reset_limit", "set_budget", "recount", "maintain_limits",
                           "resolve", "sweep", "signal",
                           "set_schedule", "remove_schedule", "pause_schedule", "resume_schedule", "run_schedule", "backfill"]
  }';
  role_name text;
  verb text;
  signature text;
begin
  for role_name in select jsonb_object_keys(verbs) loop
    continue when not exists (select from pg_roles where rolname = role_name);
    -- Remove other grants first. This is one transaction, so no session sees the role without its grants.
    execute format('revoke all on all routines in schema faultline from %I', role_name);
    execute format('revoke all on all tables in schema faultline from %I', role_name);
    execute format('revoke all on schema faultline from %I', role_name);
    execute format('grant usage on schema faultline to %I', role_name);
    execute format('grant select on faultline.jobs, faultline.settings to %I', role_name);
    for verb in select jsonb_array_elements_text(verbs -> role_name) loop
      for signature in
        select p.oid::regprocedure::text
        from pg_proc p
        where p.pronamespace = 'faultline'::regnamespace and p.proname = verb and p.prokind = 'f'
      loop
        execute format('grant execute on function %s to %I', signature, role_name);
      end loop;
    end loop;
    -- Every connection calls these.
    execute format('grant execute on function faultline.now(), faultline.clock(), faultline.protocol() to %I', role_name);
    if role_name in ('faultline_viewer', 'faultline_operator') then
      execute format(
        -- The tables of the view `jobs` too: the invariants read them.
        'grant select on faultline.open_jobs, faultline.ledger, faultline.journal, faultline.steps, faultline.keys,'
        ' faultline.workers, faultline.queues, faultline.tallies, faultline.samples, faultline.sampling,'
        ' faultline.flows, faultline.calls, faultline.edges, faultline.signals, faultline.nudges, faultline.sweeps,'
        ' faultline.streams, faultline.subscriptions, faultline.unique_keys,'
        ' faultline.limits, faultline.limited_queues, faultline.groups, faultline.group_events, faultline.budgets,'
        ' faultline.schedules, faultline.ticks to %I',
        role_name
      );
      -- All columns but the digests.
      execute format(
        'grant select (id, name, scopes, queues, created_at, expires_at, revoked_at, last_used_at)'
        ' on faultline.api_keys to %I',
        role_name
      );
    end if;
  end loop;
end
$migration$;
