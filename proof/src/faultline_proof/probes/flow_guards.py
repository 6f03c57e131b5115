"""Promises of flows that are easily broken and rarely seen: what is durable, and whose call, signal and code it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from faultline.core.model import Submission
from faultline.store import verbs
from faultline.store.verbs import flow, streams, topics
from faultline_proof.probes.probe import expect, probe

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from faultline.core.model import Lease
    from faultline_proof.sessions import Session, Sessions

_STEP = [{"number": "1", "kind": "step", "name": "s", "digest": None, "outcome": "done"}]
_GO = '[{"number": "2", "kind": "signal", "name": "go", "seconds": 3600}]'


def _spawn(q: Session, lease: Lease, number: str = "1", jobs: int = 1, total: int | None = None) -> int:
    return q.run(flow.spawn(lease, number, [Submission("t")] * jobs, name="t", digest=None, total=total))


def _resolve(q: Session, lease: Lease) -> None:
    q.run(flow.suspend([lease], [_GO]))
    q.run(flow.signal(lease.job_id, "go"))
    q.execute("set local synchronous_commit = off")
    q.run(flow.resolve())


def _sweep(q: Session, lease: Lease) -> None:
    _spawn(q, lease)
    q.fail(lease, then="fail")
    q.execute("set local synchronous_commit = off")
    q.run(flow.sweep())


def _take(q: Session, lease: Lease) -> None:
    _spawn(q, lease)
    q.execute("set local synchronous_commit = off")
    q.run(flow.collect_outcomes(lease, "1"))


_DURABLE: dict[str, Callable[[Session, Lease], Any]] = {
    "record": lambda q, lease: q.run(flow.record(lease, _STEP)),
    "spawn": _spawn,
    "watch": lambda q, lease: q.run(flow.watch(lease, "1", [_other(q)], name="t", digest=None)),
    "collect_outcomes": _take,
    "receive": lambda q, lease: q.run(flow.receive(lease, "1", name="go")),
    "first_over": lambda q, lease: q.run(flow.first_over(lease, [{"number": "1", "kind": "signal", "name": "go"}])),
    "signal": lambda q, lease: q.run(flow.signal(lease.job_id, "go")),
    "suspend": lambda q, lease: q.run(flow.suspend([lease], [_GO])),
    "resolve": _resolve,
    "sweep": _sweep,
    "program_changed": lambda q, lease: q.run(verbs.program_changed(lease, "code", "changed")),
    "fork": lambda q, lease: q.run(flow.fork(lease.job_id)),
    "subscribe": lambda q, _: q.run(topics.subscribe("order.paid", "t", {}, None)),
    "unsubscribe": lambda q, _: q.run(topics.unsubscribe("order.paid", "t")),
    "enqueue_flow": lambda q, _: q.execute("select faultline.enqueue_flow(%s)", _GRAPH),
    "continue_as_new": lambda q, lease: q.run(flow.continue_as_new([lease], ["{}"])),
}
_GRAPH = '[{"task": "root"}, {"task": "t", "name": "t"}]'


def _retry(q: Session, lease: Lease) -> None:
    _spawn(q, lease)
    q.fail(lease, then="fail")
    q.run(verbs.retry(lease.job_id))


def _forget(q: Session, lease: Lease) -> None:
    q.run(flow.record(lease, _STEP))
    q.execute("select faultline.forget_doubtful(%s, '1')", lease.job_id)


#: Those that say to the guards which verb writes now.
_NAMED: dict[str, Callable[[Session, Lease], Any]] = {
    **{verb: _DURABLE[verb] for verb in ("fork", "resolve", "sweep", "continue_as_new")},
    "retry": _retry,
    "forget_doubtful": _forget,
    "stream": lambda q, lease: q.run(streams.stream(lease, "tokens", 0, "[1]")),
}


@probe(
    "door", "set_current_verb", "fork", "resolve", "sweep", "continue_as_new", "reopen_flows", "stream", "forget_doubtful"
)
def a_verb_of_a_flow_leaves_no_door_open(sessions: Sessions) -> None:
    q = sessions.open()
    for verb, call in _NAMED.items():
        with q.unsaved():
            call(q, q.new_lease())
            expect(f"the verb after {verb}", q.value("select current_setting('faultline.verb', true)"), "")


def _other(q: Session) -> Any:
    return q.value("select id from faultline.open_jobs where state = 'queued' limit 1")


@probe("require_synchronous_commit")
def what_flows_acknowledge_is_durable_where_the_sessions_default_is_not(sessions: Sessions) -> None:
    q = sessions.open()
    for verb, call in _DURABLE.items():
        with q.unsaved():
            lease = q.new_lease()
            q.enqueue()
            q.execute("set local synchronous_commit = off")
            call(q, lease)
            expect(f"synchronous_commit after {verb}", q.value("show synchronous_commit"), "on")


@probe("program_changed")
def code_that_does_not_fit_is_recorded_once_and_tried_less_and_less_often(sessions: Sessions) -> None:
    q, clock = sessions.open(), sessions.clock
    lease, other = q.new_lease(lease_seconds=86400), q.new_lease(lease_seconds=86400)
    expect("the first pause", q.run(verbs.program_changed(lease, "a", "changed")), 5)
    clock.advance(60)
    expect("of another job", q.run(verbs.program_changed(other, "a", "changed")), 5)
    expect("a minute later", round(q.run(verbs.program_changed(lease, "a", "changed")) or 0), 60)
    expect("with other code", q.run(verbs.program_changed(lease, "b", "changed")), 5)
    clock.advance(7200)
    expect("hours later", q.run(verbs.program_changed(lease, "a", "changed")), 600)
    expect("events", q.events(lease.job_id), ["program_changed", "program_changed"])
    q.release(lease)
    expect("for a lease that is lost", q.run(verbs.program_changed(lease, "c", "changed")), None)


@probe("wake_changed_programs")
def jobs_that_did_not_fit_other_code_are_due_when_new_code_comes(sessions: Sessions) -> None:
    q = sessions.open()

    def stopped(code: str, delay: float = 300, **fields: Any) -> UUID:
        q.enqueue(**fields)
        lease = q.claim_one(queue=fields.get("queue", "default"))
        q.run(flow.record(lease, _STEP))
        q.run(verbs.program_changed(lease, code, "changed"))
        q.release(lease, delays=[delay])
        return lease.job_id

    def is_due(job_id: UUID) -> bool:
        return bool(q.value("select next_run_at <= faultline.clock() from faultline.jobs where id = %s", job_id))

    urgent = stopped("old", priority=-5)
    late = stopped("old", priority=7)
    others = {
        "of the same code": stopped("new"),
        "of another queue": stopped("old", queue="other"),
        "of another task": stopped("old", task="other"),
        "that waits for longer than code does": stopped("old", 1000),
    }
    failed = q.new_lease()
    q.run(flow.record(failed, _STEP))
    q.run(verbs.program_changed(failed, "old", "changed"))
    q.fail(failed, delay=300)
    others["that failed since"] = failed.job_id
    waits = q.new_lease()
    q.run(flow.record(waits, _STEP))
    q.run(verbs.program_changed(waits, "old", "changed"))
    q.run(flow.suspend([waits], ['[{"number": "2", "kind": "signal", "name": "go", "seconds": 300}]']))
    others["that waits for a signal"] = waits.job_id
    others["without a history"] = q.enqueue(delay_seconds=300)
    expect("made due", q.run(verbs.wake_changed_programs(["default"], ["t"], "new")), 2)
    expect("those of other code", [is_due(urgent), is_due(late)], [True, True])
    expect("others", [what for what, job_id in others.items() if is_due(job_id)], [])
    expect("made due the next time", q.run(verbs.wake_changed_programs(["default"], ["t"], "new")), 0)


@probe("wake_changed_programs")
def workers_are_woken_for_what_new_code_may_fit_and_a_locked_job_holds_up_nobody(sessions: Sessions) -> None:
    q, holder = sessions.open(), sessions.open()
    lease = q.new_lease()
    q.run(flow.record(lease, _STEP))
    q.run(verbs.program_changed(lease, "old", "changed"))
    q.release(lease, delays=[300])
    holder.begin()
    holder.execute("select 1 from faultline.open_jobs where id = %s for update", lease.job_id)
    with_new_code = verbs.wake_changed_programs(["default"], ["t"], "new")
    expect("while it is locked", sessions.at_once(q, lambda session: session.run(with_new_code)), 0)
    holder.commit()
    listener = sessions.open()
    listener.execute("listen faultline")
    q.heartbeat("w1", sleeping=["default"])
    expect("then", q.run(with_new_code), 1)
    expect("hints", len(listener.notices()), 1)
    expect("claimed", q.claim_one().job_id, lease.job_id)


@probe("collect_outcomes", "outcomes")
def a_call_is_not_taken_before_all_its_children_are_enqueued(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        lease = q.new_lease(priority=-200)
        call_id = _spawn(q, lease, "1", 1, total=2)
        q.complete(*q.claim())
        expect("with one of two", q.run(flow.collect_outcomes(lease, "1")).status, "open")
        _spawn(q, lease, "2", 3)
        expect("of this call", len(q.run(flow.outcomes(call_id))), 1)


@probe("kept_signal", "signal", "receive")
def a_signal_for_one_call_of_one_job_is_received_by_no_other(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        lease, other = q.new_lease(), q.new_lease()
        q.run(flow.receive(lease, "1", name="go"))
        q.run(flow.signal(lease.job_id, "go", 1, for_call="1"))
        expect("another job", q.run(flow.receive(other, "1", name="go")).status, "none")
        expect("another call", q.run(flow.receive(lease, "2", name="go")).status, "none")
        expect("this call", q.run(flow.receive(lease, "1", name="go")).status, "received")


@probe("refuse_cycle", "watch")
def a_job_may_be_waited_for_by_one_that_it_waited_for_before(sessions: Sessions) -> None:
    """Its own wait has ended, so nobody waits for each other."""
    q = sessions.open()
    with q.unsaved():
        first, second, third = q.new_lease(), q.new_lease(), q.enqueue()
        q.run(flow.watch(first, "1", [second.job_id, third], name="t", digest=None, policy="fast"))
        q.run(verbs.cancel(third))
        expect("the first has gone on", q.run(flow.collect_outcomes(first, "1")).status, "taken")
        expect("the call", q.run(flow.watch(second, "1", [first.job_id], name="t", digest=None)) > 0, True)


@probe("retry", "stopped_at", "reopen_flows")
def a_retry_opens_no_wait_whose_jobs_have_succeeded(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    q.run(flow.spawn(lease, "1", [Submission("child", queue="children")], name="child", digest=None))
    q.complete(q.claim_one(queue="children"))
    expect("taken", q.run(flow.collect_outcomes(lease, "1")).status, "taken")
    q.fail(lease, then="fail")
    q.run(verbs.retry(lease.job_id))
    expect("the call", q.value("select outcome from faultline.calls where job_id = %s", lease.job_id), "done")
