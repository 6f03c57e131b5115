"""What is told and swept when a job of a flow ends, who looks at the same moment, and what a program reads of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from faultline.core.model import Submission
from faultline.store import verbs
from faultline.store.verbs import flow
from faultline_proof.probes.flow_stage import (
    ANSWER,
    Resolver,
    expect_woken,
    is_waiting,
    spawn,
    suspend,
    suspended_parent,
    sweep_all,
)
from faultline_proof.probes.probe import expect, probe, refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from faultline.core.model import Lease
    from faultline_proof.sessions import Session, Sessions

_LEFT = "select (select count(*) from faultline.nudges), (select count(*) from faultline.sweeps)"
_CHILDREN = "select state from faultline.open_jobs where queue = 'children' order by id"


def _expire(q: Session, lease: Lease) -> None:
    q.execute("update faultline.open_jobs set lease_expires_at = created_at where id = %s", lease.job_id)
    q.reap()


_ENDINGS: dict[str, Callable[[Session, Lease], Any]] = {
    "fail": lambda q, lease: q.fail(lease, delay=3600),
    "reap": _expire,
    "cancel": lambda q, lease: q.run(verbs.cancel(lease.job_id)),
}


@probe("fail", "reap", "nudge_waiters")
def a_job_that_is_tried_again_is_told_to_nobody_and_its_children_stay(sessions: Sessions) -> None:
    q = sessions.open()
    for ending in ("fail", "reap"):
        with q.unsaved():
            parent, (child,) = suspended_parent(q, max_attempts=5)
            spawn(q, child, 1)
            _ENDINGS[ending](q, child)
            expect(f"nudges and sweeps after {ending}", q.execute(_LEFT), [(0, 0)])
            expect("waiting", is_waiting(q, parent), True)


@probe("fail", "reap", "cancel", "nudge_waiters", "end_badly")
def an_end_that_is_bad_is_told_to_parents_and_to_those_who_watch(sessions: Sessions) -> None:
    q = sessions.open()
    for ending, call in _ENDINGS.items():
        parent, (child,) = suspended_parent(q, max_attempts=1)
        watcher = q.new_lease()
        q.run(flow.watch(watcher, "1", [child.job_id], name="w", digest=None))
        suspend(q, watcher, {"number": "1", "kind": "watch", "name": "w"})
        spawn(q, child, 1)
        q.record_start(child)
        call(q, child)
        expect(f"woken by {ending}", Resolver(q).woken(), 2)
        expect("who goes on", {lease.job_id for lease in q.claim()}, {parent, watcher.job_id})
        sweep_all(q)
        expect("the child of the child", q.execute(_CHILDREN)[-1], ("cancelled",))


@probe("fail", "reap", "cancel", "expire", "end_badly")
def who_watches_a_job_of_no_flow_is_told_how_badly_it_ended(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    for ending in (*_ENDINGS, "expire"):
        watcher = q.new_lease()
        job_id = q.enqueue(expires_seconds=60) if ending == "expire" else q.enqueue(max_attempts=1, priority=-200)
        q.run(flow.watch(watcher, "1", [job_id], name="w", digest=None))
        suspend(q, watcher, {"number": "1", "kind": "watch", "name": "w"})
        if ending == "expire":
            sessions.clock.advance(70)
            expect("expired", len(q.run(verbs.expire())), 1)
        else:
            watched = q.claim_one()
            q.record_start(watched)
            _ENDINGS[ending](q, watched)
        expect(f"woken by {ending}", Resolver(q).woken(), 1)
        q.complete(expect_woken(q, watcher.job_id))


@probe("sweep", "cancel_children_batch", "nudge_waiters", "cancel_children")
def a_sweep_leaves_what_has_ended_alone_and_tells_those_who_watch(sessions: Sessions) -> None:
    q = sessions.open()
    parent = q.new_lease()
    spawn(q, parent, 2)
    failed, waits = q.claim(queue="children")
    q.fail(failed, then="fail")
    suspend(q, waits, ANSWER)
    watcher = q.new_lease()
    q.run(flow.watch(watcher, "1", [waits.job_id], name="w", digest=None))
    suspend(q, watcher, {"number": "1", "kind": "watch", "name": "w"})
    q.fail(parent, then="fail")
    sweep_all(q)
    found = q.execute("select state, suspended from faultline.open_jobs where queue = 'children' order by state desc")
    expect("states and marks of waiting", found, [("failed", None), ("cancelled", None)])
    expect("woken", Resolver(q).woken(), 1)
    expect_woken(q, watcher.job_id)


@probe("sweep", "is_swept")
def a_sweep_waits_for_nobody_and_takes_nobody_by_surprise(sessions: Sessions) -> None:
    """Who holds the parent's row may be about to retry it. Two sweeps of one call would wait for each other."""
    q, other = sessions.open(), sessions.open()
    parent = q.new_lease()
    spawn(q, parent, 1)
    q.fail(parent, then="fail")
    other.begin()
    other.execute("select from faultline.open_jobs where id = %s for update", parent.job_id)
    sessions.at_once(q, lambda session: session.run(verbs.sweep()))
    expect("while its parent is held", q.execute(_CHILDREN), [("queued",)])
    other.rollback()
    sweep_all(q)
    expect("afterwards", q.execute(_CHILDREN), [("cancelled",)])
    closes = q.new_lease()
    spawn(q, closes, 3)
    q.run(verbs.record(closes, [{"number": "1", "kind": "children", "name": "child", "outcome": "closed"}]))
    other.begin()
    other.run(verbs.sweep(2))
    sessions.at_once(q, lambda session: session.run(verbs.sweep(2)))
    other.commit()
    sweep_all(q)
    expect("all", q.execute(_CHILDREN), [("cancelled",)] * 4)


@probe("is_swept", "sweep")
def the_children_of_a_call_that_is_open_are_not_swept(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    call_id = spawn(q, lease, 1)
    sessions.hand.execute("insert into faultline.sweeps (job_id, call_id) values (%s, %s)", lease.job_id, call_id)
    sweep_all(q)
    expect("the child", q.execute(_CHILDREN), [("queued",)])


@probe("collect_outcomes", "why_not_retried")
def a_call_is_not_taken_while_one_of_its_jobs_is_being_retried(sessions: Sessions) -> None:
    q, other = sessions.open(), sessions.open()
    lease = q.new_lease()
    spawn(q, lease, 1, policy="keep")
    child = q.claim_one(queue="children")
    q.fail(child, then="fail")
    other.begin()
    other.run(verbs.retry(child.job_id))
    taken = q.start(lambda session: session.run(verbs.collect_outcomes(lease, "1")))
    sessions.wait_until_blocked(q, taken)
    other.commit()
    expect("the call", taken.result().status, "open")


@probe("history", "watch")
def a_history_is_that_of_one_job_and_says_what_is_over(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    lease, other = q.new_lease(), q.new_lease()
    q.run(verbs.receive(lease, "1", name="answer", seconds=5))
    q.run(verbs.receive(other, "1", name="answer", seconds=5))
    q.run(flow.watch(lease, "2", [other.job_id], name="w", digest=None))
    sessions.clock.advance(6)
    found = q.run(flow.history(lease.job_id))
    expect("numbers, and what is over", [(call.number, call.is_over) for call in found], [("1", True), ("2", False)])
    sessions.clock.advance(30 * 86400)
    expect("after a month", [call.is_over for call in q.run(flow.history(lease.job_id))], [True, True])


@probe("spawn", "refuse_cycle", "keep_chunk")
def a_child_does_not_wait_for_the_job_that_called_it(sessions: Sessions) -> None:
    q = sessions.open()
    known = Submission("t", idempotency_key="k", priority=-200)
    q.run(verbs.enqueue_many([known]))
    lease = q.claim_one()
    spawn(q, lease, 1)
    suspend(q, lease)
    child = q.claim_one(queue="children")
    with refused(q, "FL005", "which waits for it", what="a child that calls its parent"):
        q.run(verbs.spawn(child, "1", [known], name="t", digest=None))


@probe("outcomes")
def a_job_that_is_gone_is_told_of(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    call_id = spawn(q, lease, 1)
    sessions.hand.execute("delete from faultline.open_jobs where queue = 'children'")
    with refused(q, "FL004", "it was pruned", what="a job that is gone"):
        q.run(verbs.outcomes(call_id))


@probe("complete")
def a_job_that_is_done_stays_in_its_flow(sessions: Sessions) -> None:
    q = sessions.open()
    parent, (child,) = suspended_parent(q)
    q.complete(child)
    expect("its flow", q.value("select flow_id from faultline.ledger where job_id = %s", child.job_id), parent)
