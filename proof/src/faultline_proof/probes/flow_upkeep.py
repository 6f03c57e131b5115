"""Upkeep of flows: what reconcile finds and leaves alone, and which jobs go with a flow that is forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING

from faultline.core.model import Submission
from faultline.store import verbs
from faultline.store.verbs import streams
from faultline_proof.probes.flow_stage import ANSWER, Resolver, expect_woken, spawn, suspend, suspended_parent, sweep_all
from faultline_proof.probes.probe import expect, probe

if TYPE_CHECKING:
    from uuid import UUID

    from faultline.core.model import Lease
    from faultline_proof.sessions import Session, Sessions

_NUDGES = "select count(*) from faultline.nudges"
_OTHER = {"number": "1", "kind": "watch", "name": "other"}
_FOR_LONG = {"number": "3", "kind": "sleep", "name": "sleep", "seconds": 86400}


def _watch(q: Session, lease: Lease, target: UUID, seconds: int = 86400) -> None:
    """As two sessions do that look before either of them has written."""
    call_id = q.value(
        "insert into faultline.calls (job_id, number, kind, name, fencing_token, begun_at, policy, until)"
        " values (%s, '1', 'watch', 'other', 1, faultline.clock(), 'raise', faultline.clock() + make_interval(secs => %s))"
        " returning id",
        lease.job_id,
        seconds,
    )
    q.execute("insert into faultline.edges (call_id, index, job_id) values (%s, 0, %s)", call_id, target)


def _states(q: Session, *leases: Lease) -> list[str]:
    return [q.state(lease.job_id).value for lease in leases]


@probe("cancel_deadlocked_jobs", "reconcile")
def jobs_in_a_row_are_left_alone_by_reconcile(sessions: Sessions) -> None:
    q = sessions.open()
    runs, first, second = (q.new_lease() for _ in range(3))
    _watch(q, first, runs.job_id)
    _watch(q, second, first.job_id)
    for lease in (first, second):
        suspend(q, lease, _OTHER)
    q.run(verbs.reconcile())
    expect("states", _states(q, first, second), ["queued", "queued"])


@probe("cancel_deadlocked_jobs", "reconcile")
def a_circle_of_which_one_may_go_on_by_itself_is_left_alone(sessions: Sessions) -> None:
    q = sessions.open()
    for first_waits, seconds in (([_OTHER, {**ANSWER, "number": "2"}], 86400), ([_OTHER], 1800)):
        first, second = q.new_lease(), q.new_lease()
        _watch(q, first, second.job_id, seconds)
        _watch(q, second, first.job_id)
        suspend(q, first, *first_waits)
        suspend(q, second, _OTHER)
        q.run(verbs.reconcile())
        expect("states", _states(q, first, second), ["queued", "queued"])


@probe("cancel_deadlocked_jobs", "reconcile")
def reconcile_waits_for_no_job_of_a_circle(sessions: Sessions) -> None:
    q, other = sessions.open(), sessions.open()
    first, second = q.new_lease(), q.new_lease()
    _watch(q, first, second.job_id)
    _watch(q, second, first.job_id)
    for lease in (first, second):
        suspend(q, lease, _OTHER)
    other.begin()
    other.execute("select from faultline.open_jobs where id = %s for update", second.job_id)
    sessions.at_once(q, lambda session: session.run(verbs.reconcile()))
    expect("while its row is held", _states(q, first, second), ["queued", "queued"])
    other.rollback()
    q.run(verbs.reconcile())
    expect("afterwards", _states(q, first, second), ["queued", "cancelled"])


@probe("cancel_waiting", "cancel_deadlocked_jobs")
def a_job_that_is_cancelled_while_it_waits_takes_its_children_with_it(sessions: Sessions) -> None:
    q = sessions.open()
    first, second = q.new_lease(), q.new_lease()
    spawn(q, second, 1, "2")
    _watch(q, first, second.job_id)
    _watch(q, second, first.job_id)
    for lease in (first, second):
        suspend(q, lease, _OTHER)
    q.run(verbs.reconcile())
    expect("marked", q.value("select suspended from faultline.open_jobs where id = %s", second.job_id), None)
    sweep_all(q)
    expect("its child", q.value("select state from faultline.jobs where queue = 'children'"), "cancelled")


@probe("cancel_deadlocked_jobs", "reconcile")
def a_circle_with_a_child_in_it_is_broken_where_one_watches(sessions: Sessions) -> None:
    """A parent waits for its child, which waits for its parent: the child alone came to wait for a job that was there."""
    q = sessions.open()
    parent, (child,) = suspended_parent(q)
    _watch(q, child, parent)
    sessions.hand.execute("update faultline.open_jobs set watched = true where id = %s", parent)
    suspend(q, child, _OTHER)
    q.run(verbs.reconcile())
    expect("the child", _states(q, child), ["cancelled"])
    expect("the parent goes on", Resolver(q).woken(), 1)
    expect_woken(q, parent)


@probe("cancel_deadlocked_jobs", "watch", "reconcile")
def two_that_watch_each_other_at_the_same_moment_do_not_wait_for_long(sessions: Sessions) -> None:
    """Each is watched already, so neither has to mark the other, whose row is locked; and neither sees the other's call."""
    q, other = sessions.open(), sessions.open()
    first, second, third = (q.new_lease() for _ in range(3))
    q.run(verbs.watch(third, "1", [first.job_id, second.job_id], name="other", digest=None))
    q.begin()
    q.run(verbs.watch(first, "1", [second.job_id], name="other", digest=None))
    sessions.at_once(other, lambda s: s.run(verbs.watch(second, "1", [first.job_id], name="other", digest=None)))
    q.commit()
    for lease in (first, second):
        suspend(q, lease, _OTHER)
    q.run(verbs.reconcile())
    expect("states", _states(q, first, second), ["queued", "cancelled"])
    expect("woken", Resolver(q).woken(), 1)
    expect_woken(q, first.job_id)


@probe("wake_overdue_suspended", "reconcile")
def reconcile_nudges_nobody_who_cannot_go_on(sessions: Sessions) -> None:
    q = sessions.open()
    sleeps, waits, is_nudged = (q.new_lease() for _ in range(3))
    suspend(q, sleeps, _FOR_LONG)
    suspend(q, waits, ANSWER)
    suspended_parent(q)
    suspend(q, is_nudged, ANSWER)
    q.run(verbs.signal(is_nudged.job_id, "answer", 1))
    expect("nudges before", q.value(_NUDGES), 1)
    q.run(verbs.reconcile())
    expect("nudges", q.value(_NUDGES), 1)


@probe("wake_overdue_suspended", "reconcile")
def reconcile_nudges_no_more_than_it_was_asked_to(sessions: Sessions) -> None:
    q = sessions.open()
    for lease in [q.new_lease() for _ in range(3)]:
        suspend(q, lease, ANSWER)
        q.run(verbs.signal(lease.job_id, "answer", 1))
    sessions.hand.execute("delete from faultline.nudges")
    q.run(verbs.reconcile(max_jobs=2))
    expect("nudges", q.value(_NUDGES), 2)


@probe("is_live", "prune")
def a_flow_is_kept_while_the_child_of_a_child_waits_to_run(sessions: Sessions) -> None:
    q = sessions.open()
    parent, (child,) = suspended_parent(q)
    spawn(q, child, 1)
    q.complete(child)
    expect("woken", Resolver(q).woken(), 1)
    q.complete(expect_woken(q, parent))
    expect("with an open job", q.run(verbs.prune("flows", older_than_seconds=0)), 0)
    q.complete(q.claim_one(queue="children"))
    expect("with none", q.run(verbs.prune("flows", older_than_seconds=0)), 3)


@probe("forget_jobs", "prune", "prune_flows")
def a_flow_is_forgotten_with_all_that_was_stored_and_its_tokens_are_not_used_again(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    spawn(q, lease, 1, max_attempts=9)
    for _ in range(3):
        q.fail(q.claim_one(queue="children"))
    child = q.claim_one(queue="children")
    q.step(child)
    q.run(streams.stream(child, "tokens", 0, "[1]"))
    q.fail(child, then="fail")
    q.complete(lease)
    expect("pruned", q.run(verbs.prune("flows", older_than_seconds=0)), 2)
    left = q.execute("select (select count(*) from faultline.steps), (select count(*) from faultline.streams)")
    expect("steps and streams", left, [(0, 0)])
    expect("the floor of tokens", q.value("select token_floor from faultline.settings"), child.fencing_token)


@probe("is_live", "prune_flow", "prune")
def a_flow_is_forgotten_without_the_jobs_that_were_there_before_it(sessions: Sessions) -> None:
    """Children whose keys were known belong to others: open ones do not keep the flow, and ended ones are not forgotten."""
    q = sessions.open()
    is_open, has_ended = (Submission("t", queue="others", idempotency_key=key) for key in ("open", "ended"))
    ids = [one.job_id for one in q.run(verbs.enqueue_many([has_ended, is_open]))]
    q.complete(q.claim_one(queue="others"))
    lease = q.new_lease()
    q.run(verbs.spawn(lease, "1", [has_ended, is_open], name="t", digest=None))
    q.complete(lease)
    expect("edges", q.value("select count(*) from faultline.edges"), 2)
    gone = sum(q.run(verbs.prune("flows", older_than_seconds=0)) for _ in range(3))
    expect("pruned, edges and all", gone, 3)
    expect("the others", [q.state(one).value for one in ids], ["succeeded", "queued"])
    expect("flows", q.value("select count(*) from faultline.flows"), 0)
