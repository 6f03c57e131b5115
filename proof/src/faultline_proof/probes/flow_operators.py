"""Operators and upkeep beside each other, on flows: nothing that one of them has promised is undone by another."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from faultline.store import verbs
from faultline_proof.probes.flow_stage import ANSWER, Resolver, expect_woken, spawn, suspend, suspended_parent, sweep_all
from faultline_proof.probes.probe import expect, probe, refused

if TYPE_CHECKING:
    from faultline_proof.sessions import Session, Sessions

_RETRY_FAILED = "select retried from faultline.retry_failed()"
_STEP = [{"number": "1", "kind": "step", "name": "s", "digest": None, "outcome": "done"}]


@probe("prune", "why_not_retried", "retry", "prune_flows")
def a_flow_is_not_forgotten_while_it_is_retried(sessions: Sessions) -> None:
    """Whoever was told that the job is queued finds it there, whatever its age."""
    q, other = sessions.open(), sessions.open()
    sessions.clock.take()
    lease = q.new_lease()
    q.run(verbs.record(lease, _STEP))
    q.fail(lease, then="fail")
    sessions.clock.advance(1000)
    q.begin()
    q.run(verbs.retry(lease.job_id))
    expect("pruned beside it", sessions.at_once(other, lambda s: s.run(verbs.prune("flows", older_than_seconds=100))), 0)
    q.commit()
    expect("pruned afterwards", other.run(verbs.prune("flows", older_than_seconds=100)), 0)
    expect("state", q.state(lease.job_id).value, "queued")
    expect("invariants", q.broken_invariants(), [])


@probe("retry", "retry_failed")
def a_flow_that_is_being_forgotten_is_not_retried_yet(sessions: Sessions) -> None:
    q, other = sessions.open(), sessions.open()
    sessions.clock.take()
    lease = q.new_lease()
    q.run(verbs.record(lease, _STEP))
    q.fail(lease, then="fail")
    q.begin()
    expect("pruned too early", q.run(verbs.prune("flows", older_than_seconds=100)), 0)
    sessions.clock.advance(1000)
    q.execute("update faultline.flows set live_at = live_at")
    expect("retried with others", sessions.at_once(other, lambda s: s.value(_RETRY_FAILED)), 0)
    retried = other.start(lambda session: session.run(verbs.retry(lease.job_id)))
    sessions.wait_until_blocked(other, retried)
    q.rollback()
    retried.result()
    expect("state", q.state(lease.job_id).value, "queued")


@probe("sweep", "cancel_children_batch", "cancel_children")
def a_child_that_is_retried_while_its_parent_ends_is_swept(sessions: Sessions) -> None:
    q, other = sessions.open(), sessions.open()
    parent, (child, *_) = suspended_parent(q, 2)
    q.fail(child, then="fail")
    q.begin()
    q.run(verbs.retry(child.job_id))
    other.run(verbs.cancel(parent))
    for _ in range(3):
        sessions.at_once(other, lambda session: session.run(verbs.sweep()))
    q.commit()
    sweep_all(other)
    expect("the child", q.state(child.job_id).value, "cancelled")
    expect("sweeps left", q.value("select count(*) from faultline.sweeps"), 0)
    expect("invariants", q.broken_invariants(), [])


@probe("retry", "retry_failed", "retry_job_of_flow")
def a_child_is_not_retried_with_an_old_view_of_its_parent(sessions: Sessions) -> None:
    q, other = sessions.open(), sessions.open()
    parent, (child, *_) = suspended_parent(q, 2)
    q.fail(child, then="fail")
    sweep_all(q)
    for isolation in ("repeatable read", "serializable"):
        other.begin(isolation)
        other.value("select count(*) from faultline.open_jobs")
        with refused(other, "FL005", "READ COMMITTED"):
            other.run(verbs.retry(child.job_id))
        other.rollback()
        other.begin(isolation)
        with refused(other, "FL005", "READ COMMITTED"):
            other.value(_RETRY_FAILED)
        other.rollback()
    q.run(verbs.cancel(parent))
    expect("the child", q.state(child.job_id).value, "failed")
    plain = q.new_lease()
    q.fail(plain, then="fail")
    other.begin("repeatable read")
    other.run(verbs.retry(plain.job_id))
    other.commit()
    expect("a job of no flow", q.state(plain.job_id).value, "queued")


@probe("prune", "prune_flows")
def prune_looks_at_no_more_flows_than_it_was_asked_to(sessions: Sessions) -> None:
    """Of many that wait for longer than flows are kept, each call looks at some: it ends, and the next one goes on."""
    q = sessions.open()
    sessions.clock.take()
    for _ in range(5):
        suspend(q, q.new_lease(), ANSWER)
    sessions.clock.advance(1000)
    looked = "select count(*) from faultline.flows where live_at = faultline.clock()"
    for seen in (2, 4, 5):
        expect("pruned", q.run(verbs.prune("flows", older_than_seconds=100, max_rows=2)), 0)
        expect("flows that were looked at", q.value(looked), seen)


@probe("collect_outcomes", "outcomes")
def the_errors_of_many_children_fit_into_the_history(sessions: Sessions) -> None:
    """The first ones are kept whole, of the others the beginning: a history that is too long could never be gone on with."""
    q = sessions.open()
    lease = q.new_lease()
    call_id = spawn(q, lease, 120, policy="keep")
    error = "ValueError: " + "é" * 10_000
    q.fail(*q.claim(200, queue="children"), then="fail", error=error)
    taken = q.run(verbs.collect_outcomes(lease, "1"))
    errors = [taken.result["failed"][str(index)]["error"] for index in range(120)]
    expect("whole", sorted({len(one) for one in errors[:100]}), [len(error)])
    expect("beginnings", {one == error[:200] for one in errors[100:]}, {True})
    shown = [one.error for one in q.run(verbs.outcomes(call_id))]
    expect("as it was taken", shown, errors)


def _graph(layers: int, width: int) -> str:
    jobs: list[dict[str, Any]] = [{"task": "root"}]
    for layer in range(layers):
        after = [f"{layer - 1}.{n}" for n in range(width)] if layer else []
        jobs += [{"task": "t", "name": f"{layer}.{n}", **({"after": after} if after else {})} for n in range(width)]
    return json.dumps(jobs)


@probe("reconcile", "cancel_deadlocked_jobs", "wake_overdue_suspended")
def a_graph_with_many_paths_is_looked_at_quickly(sessions: Sessions) -> None:
    """Its jobs wait for each other in millions of ways, and in no circle."""
    q = sessions.open()
    q.execute("select from faultline.enqueue_flow(%s)", _graph(20, 30))
    q.execute("set statement_timeout = '5s'")
    q.run(verbs.reconcile())
    expect("cancelled", q.value("select count(*) from faultline.open_jobs where state = 'cancelled'"), 0)


@probe("reconcile", "wake_overdue_suspended")
def reconcile_wakes_only_those_whose_signal_fits(sessions: Sessions) -> None:
    q = sessions.open()
    resolver = Resolver(q)
    fits, other_name, other_call, early = (q.new_lease() for _ in range(4))
    q.run(verbs.signal(early.job_id, "answer", 1))
    for lease in (fits, other_name, other_call):
        suspend(q, lease, ANSWER)
    suspend(q, early, {**ANSWER, "fresh": True})
    q.run(verbs.signal(fits.job_id, "answer", 1))
    q.run(verbs.signal(other_name.job_id, "question", 1))
    q.run(verbs.signal(other_call.job_id, "answer", 1, for_call="1"))
    sessions.hand.execute("update faultline.signals set for_call = '2' where job_id = %s", other_call.job_id)
    sessions.hand.execute("delete from faultline.nudges")
    q.run(verbs.reconcile())
    expect("nudged", q.execute("select job_id from faultline.nudges"), [(fits.job_id,)])
    expect("woken", resolver.woken(), 1)
    expect_woken(q, fits.job_id)


@probe("enqueue_flow")
def a_graph_with_many_arrows_is_enqueued_quickly(sessions: Sessions) -> None:
    """Each of 2,000 jobs comes after the one before it, and 30 jobs after 1,000 others."""
    q: Session = sessions.open()
    jobs: list[dict[str, Any]] = [{"task": "root"}, {"task": "t", "name": "0"}]
    jobs += [{"task": "t", "name": f"{n}", "after": [f"{n - 1}"]} for n in range(1, 2000)]
    jobs += [{"task": "t", "name": f"last {n}", "after": [f"{n}" for n in range(1000)]} for n in range(30)]
    q.execute("set statement_timeout = '15s'")
    placed = q.execute("select * from faultline.enqueue_flow(%s) order by 1", json.dumps(jobs))
    expect("positions", [row[0] for row in placed], list(range(1, len(jobs) + 1)))
    waits = dict(
        q.execute(
            "select c.job_id, array_agg(e.job_id order by e.index) from faultline.calls c"
            " join faultline.edges e on e.call_id = c.id where c.kind = 'after' group by 1"
        )
    )
    ids = [row[1] for row in placed]
    expect("the chain", [waits[ids[n + 2]] for n in range(1999)], [[ids[n + 1]] for n in range(1999)])
    expect("the last ones", {tuple(waits[job_id]) for job_id in ids[-30:]}, {tuple(ids[1:1001])})
    told = q.value("select count(*) from faultline.open_jobs where watched")
    expect("jobs whose end is told to others", told, 1999)


@probe("retry", "retry_failed")
def retries_of_one_flow_come_one_after_another(sessions: Sessions) -> None:
    """Each locks many jobs of it, and two could lock them in opposite orders."""
    q, other, third = sessions.open(), sessions.open(), sessions.open()
    _, (one, two, three) = suspended_parent(q, 3, policy="keep")
    plain = q.new_lease()
    q.fail(one, two, three, plain, then="fail")
    q.begin()
    q.run(verbs.retry(one.job_id))
    expect("retried with others", sessions.at_once(third, lambda s: s.value(_RETRY_FAILED)), 1)
    expect("a job of no flow", third.state(plain.job_id).value, "queued")
    waiting = other.start(lambda session: session.run(verbs.retry(two.job_id)))
    sessions.wait_until_blocked(other, waiting)
    q.commit()
    waiting.result()
    q.begin()
    expect("retried later", q.value(_RETRY_FAILED), 1)
    q.execute("savepoint s")
    waiting = other.start(lambda session: session.run(verbs.cancel(three.job_id)))
    sessions.wait_until_blocked(other, waiting)
    q.commit()
    waiting.result()


@probe("retry_failed")
def jobs_that_are_retried_together_keep_their_flow_to_themselves(sessions: Sessions) -> None:
    q, other = sessions.open(), sessions.open()
    _, (one, two) = suspended_parent(q, 2, policy="keep")
    q.fail(one, two, then="fail")
    q.begin()
    expect("retried", q.value("select retried from faultline.retry_failed(max_jobs => 1)"), 1)
    left = next(lease for lease in (one, two) if q.state(lease.job_id).value == "failed")
    waiting = other.start(lambda session: session.run(verbs.retry(left.job_id)))
    sessions.wait_until_blocked(other, waiting)
    q.commit()
    waiting.result()
    expect("both", {q.state(one.job_id).value, q.state(two.job_id).value}, {"queued"})
