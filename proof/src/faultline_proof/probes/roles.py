"""What the roles may do, and what they may not even try."""

from __future__ import annotations

import contextlib
import random
from typing import TYPE_CHECKING

from faultline.core.ids import Ids
from faultline.core.model import Submission
from faultline.core.schedules import Policy, Rule
from faultline.store import verbs
from faultline.store.reads import cancellable, failures, views
from faultline.store.verbs import access, budget, flow, graphs, limit, schedules, streams, topics
from faultline_proof.probes.probe import expect, probe, refused

if TYPE_CHECKING:
    from collections.abc import Iterator

    from faultline_proof.sessions import Session, Sessions

_IDS = Ids(lambda: 0.0, random.SystemRandom())
_EVERYONE = {"now", "clock", "protocol"}
_CALLS = {
    "faultline_producer": {
        "enqueue", "enqueue_many", "enqueue_one", "cancel", "signal", "publish", "enqueue_flow", "chunks",
    },
    "faultline_worker": {
        "enqueue", "enqueue_many", "enqueue_one",
        "claim", "renew", "complete", "fail", "release", "record_start", "needs_start_record",
        "fence",
        "same_transaction", "record_refusal", "step", "recall", "progress", "heartbeat", "unregister_worker", "reap",
        "first_expired", "due",
        "reconcile", "prune", "worker_lock", "tally", "sample", "roll_up", "announce", "program_changed",
        "wake_changed_programs",
        "suspend", "resolve", "sweep", "record", "history", "spawn", "outcomes", "collect_outcomes", "signal", "receive",
        "first_over", "watch", "publish", "subscribe", "enqueue_flow", "continue_as_new", "stream", "chunks", "upstream",
        "fork",
        "declare_schedules", "stale_schedules", "due_schedules", "tick", "tick_many", "schedule_failed",
        "expire", "declare_queue", "declare_budget", "take_budget", "limited", "next_claim_at", "yield_to_waiting_worker",
        "maintain_limits",
        "recount", "sync_claim",
    },
    "faultline_viewer": {"api_key", "error_kind", "sample", "chunks"},
    "faultline_operator": {
        "enqueue", "enqueue_many", "enqueue_one",
        "cancel", "cancel_jobs", "retry", "retry_failed", "pause", "resume", "change_setting",
        "reap", "reconcile", "recover", "prune", "sample", "roll_up", "error_kind", "resolve", "sweep", "signal",
        "publish", "subscribe", "unsubscribe", "enqueue_flow", "chunks", "fork", "undo",
        "set_schedule", "remove_schedule", "pause_schedule", "resume_schedule", "run_schedule", "backfill",
        "expire", "set_limit", "reset_limit", "set_budget", "recount", "maintain_limits",
    },
}  # fmt: skip
_READS = {"jobs", "settings"}
_KEY_FACTS = {"id", "name", "scopes", "queues", "created_at", "expires_at", "revoked_at", "last_used_at"}
_CALLED = "select funcname, sum(calls) from pg_stat_xact_user_functions where schemaname = 'faultline' group by funcname"
_READS_MORE = {
    "open_jobs", "ledger", "journal", "steps", "keys", "workers", "queues", "tallies", "samples", "sampling",
    "flows", "calls", "edges", "signals", "nudges", "sweeps", "streams", "subscriptions", "schedules", "ticks",
    "unique_keys", "limits", "limited_queues", "groups", "group_events", "budgets",
}  # fmt: skip


@probe("role")
def roles_may_call_their_verbs_and_nothing_else(sessions: Sessions) -> None:
    q = sessions.open()
    for role, calls in _CALLS.items():
        found = q.execute(
            "select proname from pg_proc where pronamespace = 'faultline'::regnamespace"
            " and has_function_privilege(%s, oid, 'execute')",
            role,
        )
        expect(f"what {role} may call", sorted({name for (name,) in found}), sorted(calls | _EVERYONE))
        expect(f"what {role} may add", q.value("select has_schema_privilege(%s, 'faultline', 'create')", role), False)
        reads = _READS | (_READS_MORE if role in ("faultline_viewer", "faultline_operator") else set())
        for privilege, tables in (
            ("select", reads),
            *((word, set()) for word in ("insert", "update", "delete", "truncate")),
        ):
            found = q.execute(
                "select relname from pg_class where relnamespace = 'faultline'::regnamespace and relkind in ('r', 'v')"
                " and has_table_privilege(%s, oid, %s)",
                role,
                privilege,
            )
            expect(f"what {role} may {privilege}", sorted(name for (name,) in found), sorted(tables))


@probe("role")
def nobody_reads_the_digests_of_api_keys(sessions: Sessions) -> None:
    q = sessions.open()
    for role in _CALLS:
        found = q.execute(
            "select attname from pg_attribute where attrelid = 'faultline.api_keys'::regclass and attnum > 0"
            " and has_column_privilege(%s, attrelid, attnum, 'select')",
            role,
        )
        told = role in ("faultline_viewer", "faultline_operator")
        expect(f"what {role} may read of keys", {name for (name,) in found}, _KEY_FACTS if told else set())


@probe("role")
def everyone_else_is_shut_out(sessions: Sessions) -> None:
    q = sessions.open()
    for privilege in ("usage", "create"):
        entered = q.value("select has_schema_privilege('public', 'faultline', %s)", privilege)
        expect(f"{privilege} of the schema by everyone", entered, False)
    found = q.execute(
        "select proname from pg_proc where pronamespace = 'faultline'::regnamespace"
        " and has_function_privilege('public', oid, 'execute')"
    )
    expect("what everyone may call", found, [])
    found = q.execute(
        "select relname from pg_class where relnamespace = 'faultline'::regnamespace and relkind in ('r', 'v')"
        " and has_table_privilege('public', oid, 'select, insert, update, delete, truncate')"
    )
    expect("what everyone may touch", found, [])


@contextlib.contextmanager
def _at_work(q: Session, role: str) -> Iterator[None]:
    """Be this role, and call every function that lends it the rights of its owner."""
    with q.unsaved():
        q.execute("set local track_functions = 'all'")
        before: dict[str, int] = dict(q.execute(_CALLED))
        q.execute(f"set local role {role}")
        yield
        q.execute("reset role")
        called = {name for name, times in q.execute(_CALLED) if times > before.get(name, 0)}
        lent = q.execute("select proname from pg_proc where pronamespace = 'faultline'::regnamespace and prosecdef")
        expect(f"what {role} may call and was not called", (_CALLS[role] & {name for (name,) in lent}) - called, set())


@probe("role")
def a_worker_can_do_all_that_a_worker_does(sessions: Sessions) -> None:
    q = sessions.open()
    with _at_work(q, "faultline_worker"):
        q.value("select faultline.enqueue('t')")
        _enqueue_one(q)
        for _ in range(4):
            q.enqueue(idempotency_key="k")
            q.enqueue()
        expect("due", q.run(views.due(["default"])), ["default"])
        done, failed, released, kept = q.claim(4)
        q.renew(kept)
        q.record_start(kept)
        q.step(kept)
        q.run(verbs.recall(kept, "s"))
        q.progress(kept)
        q.fence(kept)
        q.value("select faultline.same_transaction(pg_current_xact_id())")
        q.run(verbs.record_refusal(kept))
        q.complete(done)
        q.complete(done, failed)
        q.fail(failed)
        q.fail(kept)
        q.release(released)
        q.heartbeat(sleeping=["default"])
        q.run(verbs.announce("w", ["t"]))
        q.run(verbs.tally("w", []))
        q.run(verbs.sample())
        q.run(verbs.roll_up())
        q.reap()
        q.run(verbs.first_expired())
        q.run(verbs.reconcile())
        q.run(verbs.prune("ledger", older_than_seconds=60))
        q.run(verbs.unregister_worker("w"))
        q.run(topics.subscribe("order.paid", "t", {}, None))
        q.run(topics.publish("order.paid", "{}"))
        _run_a_flow(q)
        _keep_limits(q)
        _tick(q)
        with refused(q, "42501"):
            q.run(verbs.retry(kept.job_id))


def _keep_limits(q: Session) -> None:
    q.run(verbs.expire())
    q.run(limit.declare_queue("limited", {"queue": {"concurrency": 1}}))
    q.run(limit.next_claim_at("limited"))
    q.run(limit.yield_to_waiting_worker("limited", "w"))
    q.run(limit.maintain_limits(["limited"]))
    q.run(verbs.sync_claim(q.new_lease(priority=-300)))
    q.run(budget.declare_budget("tokens", {"rate": 1}))
    q.run(budget.take_budget(q.new_lease(priority=-300), "tokens", 1, 1))


def _tick(q: Session) -> None:
    """Every verb by which a worker decides about schedules."""
    spec = schedules.spec_text(Rule(every=60.0), Submission("t"), Policy())
    q.run(schedules.declare_schedules("w", [schedules.Declaration("s", "digest", None, spec)]))
    q.run(schedules.stale_schedules(["s"], ["digest"]))
    q.run(schedules.due_schedules(["digest"]))
    q.value("select count(*) from faultline.tick('s', 0, now(), '{}', '[]', now())")
    q.run(schedules.tick_many([]))
    q.value("select faultline.schedule_failed('s', 0, 'error')")


def _enqueue_one(q: Session) -> None:
    q.run(verbs.enqueue_many([Submission("t")], _IDS))


def _enqueue_a_graph(q: Session) -> None:
    q.run(graphs.enqueue_flow(Submission("t"), [graphs.Node(Submission("t"), "a")]))


def _run_a_flow(q: Session) -> None:
    """Every verb by which a program calls, waits and goes on."""
    _enqueue_a_graph(q)
    other = q.enqueue()
    q.run(flow.continue_as_new([q.new_lease()], ["{}"]))
    lease = q.new_lease(priority=-200)
    q.run(flow.record(lease, [{"number": "1", "kind": "step", "name": "s", "digest": None, "outcome": "done"}]))
    call_id = q.run(flow.spawn(lease, "2", [Submission("t")], name="t", digest=None))
    q.run(flow.watch(lease, "3", [other], name="t", digest=None))
    q.run(flow.collect_outcomes(lease, "2"))
    q.run(flow.outcomes(call_id))
    q.run(flow.history(lease.job_id))
    q.run(flow.fork(lease.job_id))
    q.run(flow.receive(lease, "4", name="go"))
    q.run(flow.first_over(lease, [{"number": "5", "kind": "sleep", "name": "sleep", "seconds": 60}]))
    q.run(flow.signal(lease.job_id, "go"))
    q.run(graphs.upstream(lease))
    q.run(streams.stream(lease, "tokens", 0, "[1]"))
    q.run(streams.chunks(lease.job_id, "tokens"))
    q.run(verbs.program_changed(lease, "code", "changed"))
    q.run(verbs.wake_changed_programs(["default"], ["t"], "code"))
    q.run(flow.suspend([lease], ['[{"number": "4", "kind": "signal", "name": "go"}]']))
    q.run(flow.resolve())
    q.run(flow.sweep())


@probe("role")
def a_producer_can_enqueue_and_cancel(sessions: Sessions) -> None:
    q = sessions.open()
    with _at_work(q, "faultline_producer"):
        q.value("select faultline.enqueue('t')")
        _enqueue_one(q)
        q.run(verbs.cancel(q.enqueue(idempotency_key="k")))
        q.run(topics.publish("order.paid", "{}"))
        _enqueue_a_graph(q)
        job_id = q.enqueue()
        q.run(flow.signal(job_id, "go"))
        q.run(streams.chunks(job_id, "tokens"))
        with refused(q, "42501"):
            q.claim()


@probe("role")
def an_operator_can_do_what_operators_do(sessions: Sessions) -> None:
    q = sessions.open()
    saga = q.new_lease()
    q.run(verbs.record(saga, [{"number": "1", "kind": "saga", "name": "saga"}]))
    with _at_work(q, "faultline_operator"):
        q.run(verbs.cancel(saga.job_id))
        q.run(verbs.undo(saga.job_id))
        q.value("select faultline.enqueue('t')")
        _enqueue_one(q)
        job_id = q.enqueue(idempotency_key="k")
        q.run(verbs.cancel(job_id))
        q.run(verbs.retry(job_id))
        q.run(flow.fork(job_id))
        q.run(verbs.recover())
        q.run(verbs.pause("default"))
        q.run(verbs.resume("default"))
        q.run(verbs.change_setting("keep_keys_seconds", 60))
        q.run(failures.retry(failures.FailedFilter()))
        q.run(cancellable.cancel(cancellable.UnendedFilter("nowhere")))
        q.run(failures.groups(failures.FailedFilter()))
        q.reap()
        q.run(verbs.reconcile())
        q.run(verbs.prune("ledger", older_than_seconds=60))
        q.run(verbs.sample())
        q.run(verbs.roll_up())
        q.run(topics.subscribe("order.paid", "t", {}, None))
        q.run(topics.publish("order.paid", "{}"))
        q.run(topics.unsubscribe("order.paid", "t"))
        _enqueue_a_graph(q)
        q.run(flow.signal(job_id, "go"))
        q.run(streams.chunks(job_id, "tokens"))
        q.run(flow.resolve())
        q.run(flow.sweep())
        q.run(verbs.expire())
        q.run(limit.set_limit("limited", "", {"concurrency": 1}))
        q.value("select faultline.recount()")
        q.run(limit.reset_limit("limited", ""))
        q.run(budget.set_budget("tokens", {"rate": 1}))
        q.value("select faultline.maintain_limits(1)")
        _operate_a_schedule(q)
        with refused(q, "42501"):
            q.claim()


def _operate_a_schedule(q: Session) -> None:
    q.run(schedules.set_schedule("s", schedules.spec_text(Rule(every=60.0), Submission("t"), Policy())))
    q.run(schedules.pause_schedule("s"))
    q.run(schedules.resume_schedule("s"))
    q.run(schedules.run_schedule("s"))
    q.run(schedules.backfill("s", []))
    q.run(schedules.remove_schedule("s"))


@probe("role")
def a_viewer_can_look_and_nothing_else(sessions: Sessions) -> None:
    q = sessions.open()
    job_id = q.enqueue()
    with _at_work(q, "faultline_viewer"):
        expect("what a viewer sees", q.state(job_id), "queued")
        expect("a viewer counts, where no worker does", q.run(verbs.sample()), True)
        for table in _READS_MORE:
            q.execute(f"select from faultline.{table}")
        q.run(failures.groups(failures.FailedFilter()))
        q.run(access.find(b"unknown"))
        q.run(streams.chunks(job_id, "tokens"))
        with refused(q, "42501"):
            q.enqueue()


@probe("role")
def who_may_only_reap_cannot_take_live_leases(sessions: Sessions) -> None:
    """Not with settings of its own, and not with objects of its own in the way of the functions' names."""
    q = sessions.open()
    with q.unsaved():
        q.new_lease()
        q.execute("create schema thief; grant all on schema thief to faultline_operator")
        q.execute("set local role faultline_operator")
        for name in ("statement_timestamp", "now", "clock_timestamp"):
            q.execute(f"create function thief.{name}() returns timestamptz language sql return '2100-01-01'::timestamptz")
        q.execute(
            "create function thief.always(timestamptz, timestamptz) returns boolean language sql return true;"
            "create operator thief.<= (leftarg = timestamptz, rightarg = timestamptz, function = thief.always)"
        )
        q.execute("set local search_path = thief, pg_catalog")
        expect("reaped", q.reap(), [])


@probe("role")
def functions_that_lend_their_owners_rights_look_for_names_where_nobody_can_put_any(sessions: Sessions) -> None:
    found = sessions.open().execute(
        "select proname from pg_proc where pronamespace = 'faultline'::regnamespace and prosecdef"
        " and coalesce('search_path=pg_catalog, pg_temp' <> all (proconfig), true)"
    )
    expect("without a search path of their own", found, [])
