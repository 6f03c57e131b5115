"""What the verbs of flows read beside full tables. Counted in rows, as in `plans`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from faultline.core.model import Submission
from faultline.store import verbs
from faultline.store.verbs import flow, streams
from faultline_proof.probes.probe import expect, probe

if TYPE_CHECKING:
    from collections.abc import Callable

    from faultline.core.model import Lease
    from faultline_proof.sessions import Driver, Session, Sessions

_FEW = 100
_DEAD_NUDGES = 20_000
_STEP = [{"number": "1", "kind": "step", "name": "s", "digest": None, "outcome": "done"}]
_OTHER_STEP = [{"number": "2", "kind": "step", "name": "s", "digest": None, "outcome": "done"}]
_SLEEP = '[{"number": "1", "kind": "sleep", "name": "sleep", "seconds": 3600}]'
_WATCH = '[{"number": "1", "kind": "watch", "name": "t"}]'
_APPROVAL = '[{"number": "2", "kind": "signal", "name": "go", "seconds": 3600}]'


def _spawn(q: Session, lease: Lease) -> int:
    return q.run(flow.spawn(lease, "1", [Submission("t", delay_seconds=3600)] * 2, name="t", digest=None))


def _fail_and_sweep(q: Session, lease: Lease) -> None:
    _spawn(q, lease)
    q.fail(lease, then="fail")
    q.run(flow.sweep())


def _race(q: Session, lease: Lease) -> None:
    _spawn(q, lease)
    waits = [{"number": "1", "kind": "children", "name": "t"}, {"number": "2", "kind": "signal", "name": "go"}]
    expect("who was first", q.run(flow.first_over(lease, waits)).status, "none")
    q.run(flow.signal(lease.job_id, "go"))
    expect("who was first", q.run(flow.first_over(lease, waits)).number, "2")


def _undo(q: Session, lease: Lease) -> None:
    q.run(flow.record(lease, [{"number": "1", "kind": "saga", "name": "saga"}]))
    q.fail(lease, then="fail")
    q.run(verbs.undo(lease.job_id))


def _wait_and_be_woken(q: Session, lease: Lease) -> None:
    q.run(flow.suspend([lease], [_APPROVAL]))
    q.run(flow.signal(lease.job_id, "go"))
    q.run(flow.resolve())


def _complete_a_child(q: Session, lease: Lease) -> None:
    child = q.run(flow.spawn(lease, "1", [Submission("t", priority=-200)], name="t", digest=None))
    expect("the call", child > 0, True)
    q.complete(q.claim_one())


def _prune(q: Session, lease: Lease) -> None:
    _fail_and_sweep(q, lease)
    expect("pruned", q.run(verbs.prune("flows", older_than_seconds=0)), 3)


def _read_upstream(q: Session, lease: Lease) -> None:
    call_id = q.value(
        "insert into faultline.calls (job_id, number, kind, name, fencing_token, begun_at, policy)"
        " values (%s, '0', 'after', 'after', 0, faultline.clock(), 'run') returning id",
        lease.job_id,
    )
    q.execute(
        "insert into faultline.edges (call_id, index, job_id) values (%s, 0, %s)", call_id, q.enqueue(delay_seconds=60)
    )
    q.execute("select faultline.upstream(%s, %s, %s)", lease.job_id, lease.fencing_token, lease.owner)


def _oversleep(q: Session, lease: Lease) -> None:
    q.run(flow.suspend([lease], [_APPROVAL]))
    q.run(flow.signal(lease.job_id, "go"))
    q.run(flow.resolve())
    q.execute("select faultline.wake_overdue_suspended(100)")


def _try_other_code(q: Session, lease: Lease) -> None:
    q.run(flow.record(lease, _STEP))
    q.run(verbs.program_changed(lease, "old", "it differs"))
    q.release(lease, delays=[60])
    expect("made due", q.run(verbs.wake_changed_programs(["default"], ["t"], "new")), 1)


def _wait_in_a_circle(q: Session, lease: Lease) -> None:
    """As if both had looked before either had written."""
    other = q.new_lease()
    for one, target in ((lease, other), (other, lease)):
        call_id = q.value(
            "insert into faultline.calls (job_id, number, kind, name, fencing_token, begun_at)"
            " values (%s, '1', 'watch', 't', 1, faultline.clock()) returning id",
            one.job_id,
        )
        q.execute("insert into faultline.edges (call_id, index, job_id) values (%s, 0, %s)", call_id, target.job_id)
    q.run(flow.suspend([lease, other], [_WATCH, _WATCH]))
    q.execute("select faultline.cancel_deadlocked_jobs()")
    expect("cancelled", q.state(other.job_id), "cancelled")


#: Each call, and what else comes in beside waiting and running jobs.
FLOW_CALLS: dict[str, tuple[Callable[[Session, Lease], Any], tuple[str, ...]]] = {
    "resolve": (_wait_and_be_woken, ("calls", "signals")),
    "nudge_waiters": (_complete_a_child, ("calls", "edges")),
    "record": (lambda q, lease: q.run(flow.record(lease, _STEP)), ("calls",)),
    "is_live": (
        lambda q, lease: (_spawn(q, lease), q.execute("select faultline.is_live(%s)", lease.job_id)),
        ("calls", "edges", "ledger"),
    ),
    "prune_flow": (_prune, ("calls", "edges", "ledger", "signals")),
    # They look at all calls that are waited for.
    "wake_overdue_suspended": (_oversleep, ("history", "edges", "signals")),
    "cancel_deadlocked_jobs": (_wait_in_a_circle, ("history", "edges")),
    "history": (lambda q, lease: q.run(flow.history(lease.job_id)), ("calls",)),
    "spawn": (_spawn, ("calls", "edges", "ledger")),
    "collect_outcomes": (
        lambda q, lease: (_spawn(q, lease), q.run(flow.collect_outcomes(lease, "1"))),
        ("calls", "edges", "ledger"),
    ),
    "outcomes": (lambda q, lease: q.run(flow.outcomes(_spawn(q, lease))), ("calls", "edges", "ledger")),
    "watch": (
        lambda q, lease: q.run(flow.watch(lease, "1", [q.enqueue()], name="t", digest=None)),
        ("calls", "edges", "ledger"),
    ),
    "fork": (
        lambda q, lease: (_spawn(q, lease), q.run(flow.record(lease, _OTHER_STEP)), q.run(flow.fork(lease.job_id, "2"))),
        ("calls", "edges", "ledger"),
    ),
    "chunks": (
        lambda q, lease: (q.run(streams.stream(lease, "tokens", 0, "[1]")), q.run(streams.chunks(lease.job_id, "tokens"))),
        ("calls", "streams", "ledger"),
    ),
    "stream": (lambda q, lease: q.run(streams.stream(lease, "tokens", 0, "[1]")), ("calls", "streams")),
    "continue_as_new": (
        lambda q, lease: (q.run(flow.record(lease, _STEP)), q.run(flow.continue_as_new([lease], ["{}"]))),
        ("calls", "edges", "signals", "streams", "steps"),
    ),
    "first_over": (_race, ("calls", "edges", "ledger", "signals")),
    "undo": (_undo, ("calls", "edges", "ledger")),
    "upstream": (_read_upstream, ("calls", "edges", "ledger")),
    "program_changed": (lambda q, lease: q.run(verbs.program_changed(lease, "code", "it differs")), ("journal",)),
    "wake_changed_programs": (_try_other_code, ("calls", "journal", "ledger")),
    "signal": (lambda q, lease: q.run(flow.signal(lease.job_id, "go", key="k")), ("signals",)),
    "receive": (
        lambda q, lease: (q.run(flow.signal(lease.job_id, "go")), q.run(flow.receive(lease, "1", name="go"))),
        ("calls", "signals"),
    ),
}


@probe("plan", "resolve", "nudges")
def a_resolve_with_a_cursor_reads_no_dead_nudges(sessions: Sessions) -> None:
    """While somebody holds an old snapshot, vacuum cannot remove what was looked at, and it would be read each time."""
    q, holder = sessions.open(), sessions.open()
    holder.begin("repeatable read")
    holder.execute("select from faultline.nudges")
    sessions.hand.execute(
        "insert into faultline.nudges (job_id, kind) select gen_random_uuid(), 0 from generate_series(1, %s)", _DEAD_NUDGES
    )
    sessions.hand.execute("delete from faultline.nudges")
    cursor = q.run(flow.resolve()).cursor
    # Those of long ago, as they look that were kept. Dead ones are not counted where the whole table is read.
    sessions.hand.execute(
        "insert into faultline.nudges (job_id, kind, xid) select gen_random_uuid(), 0, '3' from generate_series(1, %s)",
        _DEAD_NUDGES,
    )
    lease = q.new_lease()
    q.run(flow.suspend([lease], [_APPROVAL]))
    q.run(flow.signal(lease.job_id, "go"))
    with q.unsaved():
        before = rows_read(q)
        expect("woken", q.run(flow.resolve(cursor=cursor)).woken, 1)
        read = rows_read(q) - before
    if read > _FEW:
        raise AssertionError(f"resolve read {read} rows beside {_DEAD_NUDGES} dead nudges")


@probe("plan", "prune", "flows", "prune_flows")
def prune_of_flows_does_not_read_all_that_are_young(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.hand.execute(
        "insert into faultline.flows (id, begun_at, live_at)"
        " select gen_random_uuid(), now(), now() from generate_series(1, 2000)"
    )
    with q.unsaved():
        before = rows_read(q)
        expect("pruned", q.run(verbs.prune("flows", older_than_seconds=3600)), 0)
        read = rows_read(q) - before
    if read > _FEW:
        raise AssertionError(f"prune flows read {read} rows, none of them old")


def rows_read(q: Driver) -> int:
    """Rows and index entries of the protocol's tables that this session's transaction has read so far."""
    return int(
        q.value(
            "select sum(pg_stat_get_xact_tuples_returned(oid) + pg_stat_get_xact_tuples_fetched(oid)) from pg_class"
            " where relnamespace = 'faultline'::regnamespace and relkind in ('r', 'i')"
        )
    )
