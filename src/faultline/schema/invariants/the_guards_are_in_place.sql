-- No guard was dropped, disabled or weakened: every trigger is enabled, on its columns, and as `migrate` created it;
-- every constraint is validated.
select wanted.name as guard
from (values
  ('open_jobs.starts_queued'), ('open_jobs.legal_transition of state'), ('open_jobs.token_grows of fencing_token, state'),
  ('open_jobs.lease_keeps_its_holder of fencing_token, lease_owner'),
  ('open_jobs.identity_stays of created_at, id, task'), ('open_jobs.leaves_by_a_verb'),
  ('open_jobs.never_emptied'),
  ('open_jobs.free_permits of state'), ('open_jobs.free_permits_of_gone'), ('open_jobs.leave_group of state'),
  ('ledger.entered_by_complete'), ('ledger.never_rewritten'), ('ledger.forgotten_by_prune'), ('ledger.never_emptied'),
  ('journal.never_rewritten'), ('journal.forgotten_by_prune'), ('journal.never_emptied'),
  ('steps.recorded_by_step'), ('steps.never_rewritten'), ('steps.forgotten_by_prune'),
  ('steps.never_emptied'), ('keys.forgotten_by_prune'), ('keys.never_emptied'),
  ('settings.floor_grows of token_floor'), ('settings.never_forgotten'), ('settings.never_emptied'),
  ('calls.never_rewritten'), ('calls.forgotten_by_prune'), ('calls.never_emptied'),
  ('edges.never_rewritten'), ('edges.forgotten_by_prune'), ('edges.never_emptied'),
  ('signals.never_rewritten'), ('signals.forgotten_by_prune'), ('signals.never_emptied'),
  ('streams.never_rewritten'), ('streams.forgotten_by_prune'), ('streams.never_emptied'),
  ('flows.never_rewritten of begun_at, id'), ('flows.forgotten_by_prune'), ('flows.never_emptied'),
  ('nudges.looked_at_by_resolve'), ('nudges.never_emptied'),
  ('sweeps.finished_by_sweep'), ('sweeps.never_emptied'),
  ('unique_keys.forgotten_by_prune'), ('unique_keys.never_emptied'),
  ('schedules.position_grows of next_at'), ('schedules.removed_by_a_verb'), ('schedules.never_emptied'),
  ('ticks.recorded_by_a_verb'), ('ticks.never_rewritten'), ('ticks.forgotten_by_prune'), ('ticks.never_emptied'),
  ('state.known_state'), ('token.token_not_negative'),
  ('open_jobs.running_means_leased'), ('open_jobs.finished_means_ended'), ('open_jobs.attempts_in_bounds'),
  ('open_jobs.running_means_token'),
  ('ledger.ledger_pkey'), ('ledger.token_positive'), ('steps.steps_pkey'), ('steps.token_positive'), ('keys.keys_pkey'),
  ('open_jobs.open_jobs_pkey'),
  ('calls.calls_pkey'), ('calls.calls_number'), ('calls.ended_has_outcome'), ('edges.edges_pkey'), ('signals.signals_pkey'),
  ('signals.signals_key'), ('streams.streams_pkey'), ('flows.flows_pkey'), ('nudges.nudges_pkey'), ('sweeps.sweeps_pkey')
) as wanted (name)
where wanted.name not in (
  select c.relname || '.' || t.tgname || coalesce(' of ' || (
    select string_agg(a.attname, ', ' order by a.attname)
    from pg_attribute a
    where a.attrelid = t.tgrelid and a.attnum = any (t.tgattr)
  ), '')
  from pg_trigger t
  join pg_class c on c.oid = t.tgrelid
  where c.relnamespace = 'faultline'::regnamespace and t.tgenabled in ('O', 'A')
    and obj_description(t.oid, 'pg_trigger') = 'guard ' || md5(replace(pg_get_triggerdef(t.oid), 'faultline.', ''))
  union all
  select c.relname || '.' || k.conname
  from pg_constraint k
  join pg_class c on c.oid = k.conrelid
  where c.relnamespace = 'faultline'::regnamespace and k.convalidated
  union all
  select d.typname || '.' || k.conname
  from pg_constraint k
  join pg_type d on d.oid = k.contypid
  where d.typnamespace = 'faultline'::regnamespace and k.convalidated
);
