"""What the tables refuse, whoever asks: with the triggers, and past them, as a restore or a replica would write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from faultline.store import verbs
from faultline_proof.probes.probe import expect, probe, refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from faultline.core.model import Lease
    from faultline_proof.sessions import Session, Sessions

_NEW = "id, created_at, next_run_at, lease_seconds, priority, max_attempts, keep_args, queue, task, args"
_JOB = "gen_random_uuid(), now(), now(), 30, 0, 5, true, 'default', 't', '{}'"
_CALL = "job_id, number, kind, name, fencing_token, begun_at, ended_at, outcome"
_SCHEDULE = "name, spec, since, next_at, look_at, created_at, changed_at"
_ENTRY = "gen_random_uuid(), 1, now(), now(), now(), 0, 1, 5, 'w', 'q', 't', null, '{}', null"

#: Each of these is refused by a trigger, and by nothing else.
_AGAINST_TRIGGERS = (
    # a lease that changes hands
    "update faultline.open_jobs set lease_owner = 'thief' where state = 'running'",
    "update faultline.open_jobs set lease_owner = 'thief', fencing_token = 2 where state = 'running'",
    "update faultline.open_jobs set fencing_token = 2 where state = 'running'",
    # a token that shrinks, and a claim that uses one again
    "update faultline.open_jobs set fencing_token = 0 where state = 'failed'",
    (
        "update faultline.open_jobs set fencing_token = 0, state = 'queued', lease_owner = null, lease_expires_at = null"
        " where state = 'running'"
    ),
    (
        "update faultline.open_jobs set state = 'running', lease_owner = 'w/9', lease_expires_at = now(), attempt = 1,"
        " finished_at = null where state = 'cancelled'"
    ),
    (
        "update faultline.open_jobs set state = 'running', lease_owner = 'w/9', lease_expires_at = now(), attempt = 2"
        " where state = 'queued' and fencing_token > 0"
    ),
    # changes of state that are none
    "update faultline.open_jobs set state = 'failed', finished_at = now() where state = 'queued'",
    "update faultline.open_jobs set state = 'cancelled' where state = 'failed'",
    (
        "update faultline.open_jobs set state = 'running', lease_owner = 'w/9', lease_expires_at = now(), fencing_token = 9,"
        " finished_at = null where state = 'failed'"
    ),
    # identity
    "update faultline.open_jobs set id = gen_random_uuid() where state = 'queued'",
    "update faultline.open_jobs set task = 'other' where state = 'queued'",
    "update faultline.open_jobs set created_at = now() - interval '1 day' where state = 'queued'",
    # births that are none
    f"insert into faultline.open_jobs ({_NEW}, state, finished_at) values ({_JOB}, 'failed', now())",
    (
        f"insert into faultline.open_jobs ({_NEW}, state, lease_owner, lease_expires_at, fencing_token, attempt)"
        f" values ({_JOB}, 'running', 'w', now(), 1, 1)"
    ),
    f"insert into faultline.open_jobs ({_NEW}, attempt) values ({_JOB}, 1)",
    f"insert into faultline.open_jobs ({_NEW}, fencing_token) values ({_JOB}, 5)",
    # ends that are none
    *(f"delete from faultline.open_jobs where state = '{state}'" for state in ("queued", "running", "failed")),
    *(f"truncate faultline.{table}" for table in ("open_jobs", "ledger", "journal", "settings", "steps", "keys")),
    # a floor that sinks
    "update faultline.settings set token_floor = token_floor - 1",
    "delete from faultline.settings",
    # what has been done and what has happened
    f"insert into faultline.ledger values ({_ENTRY})",
    "update faultline.ledger set result = '1'",
    "delete from faultline.ledger",
    "update faultline.journal set event = 'retried'",
    "delete from faultline.journal",
    "insert into faultline.steps values (gen_random_uuid(), 's', 1, now(), null)",
    "update faultline.steps set result = '2'",
    "delete from faultline.steps",
    "delete from faultline.keys",
    # the history of flows, and what is still to be done for them
    "update faultline.calls set result = '1'",
    "update faultline.edges set index = 1",
    "update faultline.signals set name = 'other'",
    "update faultline.streams set chunk = '2'",
    "update faultline.flows set begun_at = now() - interval '1 day'",
    *(f"delete from faultline.{table}" for table in ("flows", "calls", "edges", "signals", "streams", "nudges", "sweeps")),
    *(f"truncate faultline.{table}" for table in ("flows", "calls", "edges", "signals", "streams", "nudges", "sweeps")),
    # keys, schedules and what was decided about ticks
    "delete from faultline.unique_keys",
    "update faultline.schedules set next_at = next_at - interval '1 second'",
    "delete from faultline.schedules",
    (
        "insert into faultline.ticks (schedule_id, at, kind, outcome, decided_at)"
        " values (1, now() + interval '1 minute', 'tick', 'skipped', now())"
    ),
    "update faultline.ticks set outcome = 'skipped'",
    "delete from faultline.ticks",
    *(f"truncate faultline.{table}" for table in ("unique_keys", "schedules", "ticks")),
)

#: Each of these is refused by a constraint, also past all triggers.
_AGAINST_CONSTRAINTS = (
    "update faultline.open_jobs set state = 'sleeping' where state = 'queued'",
    "update faultline.open_jobs set lease_owner = 'w' where state = 'queued'",
    "update faultline.open_jobs set lease_expires_at = now() where state = 'queued'",
    "update faultline.open_jobs set lease_owner = null where state = 'running'",
    "update faultline.open_jobs set lease_expires_at = null where state = 'running'",
    "update faultline.open_jobs set finished_at = now() where state = 'queued'",
    "update faultline.open_jobs set finished_at = null where state = 'failed'",
    "update faultline.open_jobs set attempt = 99 where state = 'queued'",
    "update faultline.open_jobs set attempt = -1 where state = 'queued'",
    "update faultline.open_jobs set attempt = 0 where state = 'running'",
    "update faultline.open_jobs set fencing_token = 0 where state = 'running'",
    "update faultline.open_jobs set fencing_token = -1 where state = 'queued'",
    "update faultline.open_jobs set priority = 1001",
    "update faultline.open_jobs set max_attempts = 1001",
    "update faultline.open_jobs set lease_seconds = 0",
    "update faultline.open_jobs set queue = ''",
    "update faultline.open_jobs set task = ''",
    "insert into faultline.open_jobs select * from faultline.open_jobs",
    (
        "insert into faultline.ledger select job_id, 9, now(), now(), now(), 0, 1, 5, 'w', 'q', 't', null, '{}', null"
        " from faultline.ledger"
    ),
    "update faultline.ledger set fencing_token = 0",
    "insert into faultline.steps select * from faultline.steps",
    "update faultline.steps set fencing_token = 0",
    "update faultline.steps set name = ''",
    "insert into faultline.journal overriding system value select * from faultline.journal",
    "update faultline.journal set event = 'nothing much'",
    "insert into faultline.keys select * from faultline.keys",
    "update faultline.keys set key = '' where key = 'a'",
    "insert into faultline.workers select * from faultline.workers",
    "update faultline.workers set id = ''",
    "update faultline.workers set id = 'a/1'",
    "insert into faultline.settings default values",
    "insert into faultline.settings (only_row) values (false)",
    "update faultline.settings set args_bytes_max = 1",
    "update faultline.settings set token_floor = -1",
    "insert into faultline.schema_files select * from faultline.schema_files",
    "insert into faultline.queues select * from faultline.queues",
    "update faultline.queues set name = ''",
    "update faultline.queues set paused_reason = repeat('x', 1001)",
    "insert into faultline.tallies select * from faultline.tallies",
    "insert into faultline.samples select * from faultline.samples",
    "insert into faultline.sampling default values",
    "insert into faultline.sampling (only_row) values (false)",
    "insert into faultline.api_keys select id, sha256(digest), name, scopes, queues, created_at from faultline.api_keys",
    (
        "insert into faultline.api_keys select gen_random_uuid(), digest, name, scopes, queues, created_at"
        " from faultline.api_keys"
    ),
    "update faultline.api_keys set digest = 'short'",
    "update faultline.api_keys set name = ''",
    "update faultline.api_keys set scopes = '{}'",
    "update faultline.api_keys set scopes = '{read,everything}'",
    "update faultline.api_keys set queues = '{}'",
    "update faultline.api_keys set queues = '{null}'",
    *(
        f"insert into faultline.{table} overriding system value select * from faultline.{table}"
        for table in ("flows", "edges", "nudges", "sweeps", "streams", "subscriptions")
    ),
    f"insert into faultline.calls ({_CALL}) select {_CALL} from faultline.calls",
    (
        f"insert into faultline.calls (id, {_CALL}) overriding system value"
        f" select id, {_CALL.replace('job_id', 'gen_random_uuid()')} from faultline.calls"
    ),
    "update faultline.calls set number = 'x'",
    "update faultline.calls set name = ''",
    "update faultline.calls set kind = 'other'",
    "update faultline.calls set policy = 'other'",
    "update faultline.calls set outcome = 'other'",
    "update faultline.calls set outcome = null",
    "update faultline.calls set fencing_token = -1",
    "update faultline.calls set until = 'infinity'",
    (
        "insert into faultline.signals (id, job_id, name, sent_at) overriding system value"
        " select id, job_id, name, sent_at from faultline.signals"
    ),
    (
        "insert into faultline.signals (job_id, name, key, sent_at) select gen.id, 'n', 'k', now() from (values"
        " ('00000000-0000-0000-0000-000000000001'::uuid), ('00000000-0000-0000-0000-000000000001')) as gen (id)"
    ),
    "update faultline.signals set name = ''",
    "update faultline.signals set key = ''",
    "update faultline.streams set name = ''",
    "update faultline.subscriptions set topic = ''",
    "insert into faultline.unique_keys select * from faultline.unique_keys",
    "update faultline.unique_keys set key = ''",
    "insert into faultline.limits select * from faultline.limits",
    "insert into faultline.budgets select * from faultline.budgets",
    "update faultline.budgets set name = ''",
    "update faultline.limits set queue = ''",
    "update faultline.limits set group_key = repeat('x', 201)",
    "insert into faultline.budgets select * from faultline.budgets",
    "insert into faultline.limited_queues select * from faultline.limited_queues",
    "insert into faultline.groups select * from faultline.groups",
    f"insert into faultline.schedules ({_SCHEDULE}) select {_SCHEDULE} from faultline.schedules",
    (
        f"insert into faultline.schedules (id, {_SCHEDULE}) overriding system value"
        f" select id, {_SCHEDULE.replace('name', 'name || name')} from faultline.schedules"
    ),
    "update faultline.schedules set name = ''",
    "update faultline.schedules set paused_at = now()",
    "update faultline.schedules set ended_at = now()",
    "update faultline.schedules set digest = 'd'",
    "update faultline.schedules set next_at = '-infinity'",
    "insert into faultline.ticks select * from faultline.ticks",
    "update faultline.ticks set kind = 'other'",
    "update faultline.ticks set at = '10000-01-01'",
    "update faultline.ticks set outcome = 'other'",
    "update faultline.ticks set last_at = now(), ticks = 2",
)

_REFUSALS = ("FL002", "23514", "23505", "23502")


def _one_of_each(q: Session) -> list[Lease]:
    """A job in every state, and a row in every table. The running one comes first."""
    leases = [q.new_lease(idempotency_key=key) for key in "abcde"]
    q.fail(leases[1], then="fail")
    q.fail(leases[2], then="cancel")
    q.step(leases[3])
    q.complete(leases[3])
    q.release(leases[4], delays=[60])
    q.heartbeat()
    q.run(verbs.pause("paused", "a reason"))
    for row in _SERVICE:
        q.execute(row)
    return leases


_SERVICE = (
    "insert into faultline.tallies (minute, queue, worker) values (clock_timestamp(), 'q', 'w')",
    (
        "insert into faultline.samples (minute, queue, sampled_at, due, delayed, running, failed)"
        " values (clock_timestamp(), 'q', now(), 0, 0, 0, 0)"
    ),
    (
        "insert into faultline.api_keys (id, digest, name, scopes, queues, created_at)"
        " values (gen_random_uuid(), sha256(gen_random_uuid()::text::bytea), 'k', '{read}', '{q}', now())"
    ),
    "insert into faultline.flows (id, begun_at) values (gen_random_uuid(), now())",
    (
        "insert into faultline.calls (job_id, number, kind, name, fencing_token, begun_at, ended_at, outcome)"
        " values (gen_random_uuid(), '1', 'step', 's', 1, now(), now(), 'done')"
    ),
    "insert into faultline.edges (call_id, index, job_id) values (1, 0, gen_random_uuid())",
    "insert into faultline.signals (job_id, name, sent_at) values (gen_random_uuid(), 'n', now())",
    "insert into faultline.nudges (job_id, kind) values (gen_random_uuid(), 0)",
    "insert into faultline.sweeps (job_id) values (gen_random_uuid())",
    (
        "insert into faultline.streams (job_id, name, fencing_token, position, chunk, bytes, begins_at, reach, written_at)"
        " values (gen_random_uuid(), 'n', 1, 0, '1', 1, 0, '{}', now())"
    ),
    "insert into faultline.subscriptions (topic, task, subscribed_at) values ('t', 't', now())",
    "insert into faultline.unique_keys (queue, key, task, job_id, at) values ('q', 'k', 't', gen_random_uuid(), now())",
    "insert into faultline.limits (queue, group_key) values ('q', '')",
    "insert into faultline.budgets (name) values ('b')",
    "insert into faultline.limited_queues (queue, changed_second) values ('q', 0)",
    "insert into faultline.groups (group_key, queue, changed_second) values ('g', 'q', 0)",
    "insert into faultline.group_events (queue) values ('q')",
    (
        "insert into faultline.schedules (name, spec, since, next_at, look_at, created_at, changed_at)"
        " values ('s', '{}', now(), now(), now(), now(), now())"
    ),
    (
        "set faultline.verb = 'tick';"
        " insert into faultline.ticks (schedule_id, at, kind, outcome, decided_at, job_id)"
        " values (1, now(), 'tick', 'fired', now(), gen_random_uuid()); reset faultline.verb"
    ),
)


@probe("trigger", "guards.sql", "table")
def the_triggers_refuse_what_no_verb_does(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        _one_of_each(q)
        for change in _AGAINST_TRIGGERS:
            with refused(q, "FL002", what=change):
                _change(q, change)


@probe("table")
def the_constraints_refuse_what_cannot_be(sessions: Sessions) -> None:
    _one_of_each(sessions.open())
    for change in _AGAINST_CONSTRAINTS:
        with refused(sessions.hand, _REFUSALS, what=change):
            _change(sessions.hand, change)


def _change(q: Session, change: str) -> None:
    if q.connection.execute(change.encode()).rowcount == 0:
        raise AssertionError(f"there was nothing to refuse: {change}")


#: What may be empty. Everything else may not.
_NULLABLE = {
    "open_jobs": {
        "claimed_at", "lease_expires_at", "lease_owner", "finished_at", "idempotency_key", "last_error", "progress",
        "trace", "flow_id", "call_id", "watched", "suspended", "expires_at", "unique_key", "group_key",
        "in_group", "group_at", "has_permit", "takes", "stopped_by",
    },
    "ledger": {"idempotency_key", "args", "result", "flow_id", "progress", "group_key"},
    "journal": {"job_id", "fencing_token", "owner"},
    "steps": {"result"},
    "workers": {"clock_ahead_seconds", "connections_max", "tasks", "schedules", "waiting_schedules", "budgets", "limits"},
    "queues": {"paused_at", "paused_reason", "paused_by"},
    "samples": {"oldest_due_at"},
    "api_keys": {"queues", "expires_at", "revoked_at", "last_used_at"},
    "calls": {
        "digest", "together", "until", "policy", "fresh", "total", "open_index", "ended_at", "outcome", "result", "error",
        "ended_moment", "doubtful",
    },
    "settings": {"recovered_at", "limits_held_until", "limits_held_for"},
    "signals": {"payload", "key", "for_call", "sent_by", "received_by", "received_at"},
    "nudges": {"not_before"},
    "sweeps": {"call_id", "missed_call", "missed_index", "reason"},
    "subscriptions": {"takes"},
    "schedules": {
        "declared", "digest", "was", "next_at", "last_at", "look_at", "ended_at", "paused_at", "failed_at", "last_error",
        "changed_by", "reason",
    },
    "ticks": {"job_id", "last_at", "ticks"},
    "unique_keys": {"until"},
    "limits": {"changed_by", "reason"},
    "budgets": {
        "changed_by", "reason", "tokens", "refilled_at", "next_job", "next_since", "next_cost", "next_until", "raised_at",
        "asleep",
    },
    "limited_queues": {"tokens", "refilled_at"},
    "groups": {"not_before", "tokens", "refilled_at"},
    "group_events": {"group_keys", "freed_groups", "priorities", "run_ats"},
}  # fmt: skip


@probe("null")
def what_must_be_there_cannot_be_empty(sessions: Sessions) -> None:
    _one_of_each(sessions.open())
    for table, column in sessions.hand.execute(
        "select c.relname, a.attname from pg_attribute a join pg_class c on c.oid = a.attrelid"
        " where c.relnamespace = 'faultline'::regnamespace and c.relkind = 'r' and a.attnum > 0 and not a.attisdropped"
    ):
        if column not in _NULLABLE.get(table, set()):
            with refused(sessions.hand, ("23502", "428C9"), what=f"{table}.{column} without a value"):
                sessions.hand.execute(f"update faultline.{table} set {column} = null")


@probe("door", "complete", "step", "prune", "reconcile", "enqueue_many", "set_current_verb")
def a_verb_leaves_no_door_open_for_the_rest_of_its_transaction(sessions: Sessions) -> None:
    q = sessions.open()
    calls: dict[str, Callable[[list[Lease]], Any]] = {
        "enqueue": lambda _: q.enqueue(),
        "enqueue of a known job": lambda leases: q.enqueue(id=leases[3].job_id, priority=-100),
        "step": lambda leases: q.step(leases[0]),
        "complete": lambda leases: q.complete(leases[0]),
        "prune": lambda _: q.run(verbs.prune("failed", older_than_seconds=3600)),
        "reconcile": lambda _: q.run(verbs.reconcile()),
    }
    closed = (
        "delete from faultline.open_jobs",
        "delete from faultline.ledger",
        "delete from faultline.keys",
        f"insert into faultline.ledger values ({_ENTRY})",
        "insert into faultline.steps values (gen_random_uuid(), 's', 1, now(), null)",
        f"insert into faultline.open_jobs ({_NEW}, fencing_token) values ({_JOB}, 5)",
    )
    for verb, call in calls.items():
        with q.unsaved():
            call(_one_of_each(q))
            for change in closed:
                with refused(q, "FL002", what=f"after {verb}: {change}"):
                    q.execute(change)


@probe("views.sql", "complete")
def one_look_sees_a_moving_job_exactly_once(sessions: Sessions) -> None:
    q, worker = sessions.open(), sessions.open()
    lease = q.new_lease()
    look = "select array_agg(state || ' ' || owner) from faultline.jobs where id = %s"
    worker.begin()
    worker.complete(lease)
    expect("before the commit", q.value(look, lease.job_id), [f"running {lease.owner}"])
    worker.commit()
    expect("after it", q.value(look, lease.job_id), [f"succeeded {lease.owner}"])
