"""Undoing what sagas have begun: once it is decided, nothing else is done, and nothing of it is lost or done by two."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from faultline.store import verbs
from faultline_proof.probes.flow_stage import spawn, suspend, suspended_parent, sweep_all
from faultline_proof.probes.probe import expect, probe, refused

if TYPE_CHECKING:
    from uuid import UUID

    from faultline.core.model import Lease
    from faultline_proof.sessions import Session, Sessions

_SAGA = {"number": "1", "kind": "saga", "name": "saga"}
_STEP = {"number": "2", "kind": "step", "name": "book", "digest": None}


def _begun(q: Session, max_attempts: int = 1) -> Lease:
    """A job that has begun a step of a saga, in its only attempt."""
    lease = q.new_lease(max_attempts=max_attempts)
    q.run(verbs.record(lease, [_SAGA, _STEP]))
    return lease


def _fail_saga(q: Session, lease: Lease, **words: Any) -> None:
    q.run(verbs.record(lease, [{**_SAGA, "outcome": "failed", "error": "no rooms", **words}]))


def _saga(q: Session, job_id: UUID) -> list[Any]:
    return list(
        q.execute("select outcome, error, result from faultline.calls where job_id = %s and number = '1'", job_id)[0]
    )


@probe("record", "only_undo", "fail")
def a_job_whose_saga_has_failed_has_attempts_of_its_own_to_undo_it(sessions: Sessions) -> None:
    """Also in its last attempt; and only once, however often it is said."""
    q = sessions.open()
    lease = _begun(q, max_attempts=2)
    _fail_saga(q, lease)
    _fail_saga(q, lease)
    q.run(verbs.record(lease, [{**_SAGA, "number": "3", "outcome": "failed"}]))
    for _ in range(2):
        q.fail(lease, then="retry", delay=0)
        expect("state", q.state(lease.job_id).value, "queued")
        lease = q.claim_one()
    q.fail(lease, then="retry", delay=0)
    expect("state after its attempts", q.state(lease.job_id).value, "failed")


@probe("record", "only_undo", "sweep", "cancel_children_batch")
def the_children_of_a_job_whose_saga_has_failed_are_cancelled(sessions: Sessions) -> None:
    """An undo must not run beside what it undoes. What has ended stays as it is."""
    q = sessions.open()
    lease = q.new_lease(max_attempts=1)
    q.run(verbs.record(lease, [_SAGA]))
    spawn(q, lease, 2, number="2")
    other = q.new_lease()
    spawn(q, other, 1, number="2")
    _fail_saga(q, lease)
    sweep_all(q)
    states = "select array_agg(state order by id) from faultline.jobs where queue = 'children'"
    expect("states", q.value(states), ["cancelled", "cancelled", "queued"])
    outcome = "select outcome from faultline.calls where job_id = %s and number = '2'"
    expect("the call", q.value(outcome, lease.job_id), "closed")
    expect("that of another job", q.value(outcome, other.job_id), None)
    expect("invariants", q.broken_invariants(), [])


@probe("cancel_children_batch", "sweep", "begin_undo", "undo", "cancel_children")
def a_child_that_undoes_goes_on_when_its_parent_ends(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease(max_attempts=1)
    spawn(q, lease, 2)
    undoes, begun = q.claim(queue="children")
    for child in (undoes, begun):
        q.run(verbs.record(child, [_SAGA, _STEP]))
    _fail_saga(q, undoes)
    q.fail(lease, then="fail")
    sweep_all(q)
    expect("states", [q.state(one.job_id).value for one in (undoes, begun)], ["running", "cancelled"])
    q.run(verbs.undo(begun.job_id))
    with refused(q, "55P03", "is being undone"):
        q.run(verbs.retry(lease.job_id))
    q.fail(undoes, then="fail")
    with refused(q, "55P03", str(begun.job_id)):
        q.run(verbs.retry(lease.job_id))
    expect("invariants", q.broken_invariants(), [])


@probe("reopen_flows", "undo", "retry", "retry_job_of_flow")
def a_job_is_not_retried_beside_a_child_whose_undo_begins(sessions: Sessions) -> None:
    q, other = sessions.open(), sessions.open()
    lease = q.new_lease(max_attempts=1)
    spawn(q, lease, 1)
    child = q.claim_one(queue="children")
    q.run(verbs.record(child, [_SAGA, _STEP]))
    q.fail(child, lease, then="fail")
    q.begin()
    q.run(verbs.undo(child.job_id))
    retried = other.start(lambda session: session.run(verbs.retry(lease.job_id)))
    sessions.wait_until_blocked(other, retried)
    q.commit()
    with refused(other, "55P03", "is being undone"):
        retried.result()
    expect("retried among all that failed", other.value("select retried from faultline.retry_failed()"), 0)
    expect("states", [q.state(one.job_id).value for one in (lease, child)], ["failed", "queued"])


@probe("retry", "refuse_reopening")
def a_job_is_retried_beside_children_that_undo_nothing(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease(max_attempts=1)
    spawn(q, lease, 2, policy="fast")
    runs, failed = q.claim(queue="children")
    q.run(verbs.record(runs, [_SAGA, _STEP]))
    q.run(verbs.record(failed, [_SAGA, _STEP]))
    q.fail(failed, then="fail")
    sessions.hand.execute(
        "update faultline.open_jobs set state = 'failed', finished_at = clock_timestamp(), lease_owner = null,"
        " lease_expires_at = null where id = %s",
        lease.job_id,
    )
    q.run(verbs.retry(lease.job_id))
    expect("states", [q.state(one.job_id).value for one in (lease, runs, failed)], ["queued", "running", "queued"])


@probe("cancel", "begin_undo")
def a_job_that_was_cancelled_is_undone_by_a_cancel_that_asks_for_it(sessions: Sessions) -> None:
    q = sessions.open()
    lease = _begun(q)
    expect("cancelled", q.run(verbs.cancel(lease.job_id)).value, "cancelled")
    expect("cancelled again", q.run(verbs.cancel(lease.job_id)).value, "cancelled")
    expect("undone", q.run(verbs.cancel(lease.job_id, undo=True)).value, "queued")
    q.complete(q.claim_one())


@probe("undo", "begin_undo", "only_undo")
def a_job_that_has_ended_is_undone_and_its_saga_has_failed_by_its_error(sessions: Sessions) -> None:
    q = sessions.open()
    beside = _begun(q)
    for then, was, result in (("fail", "failed", None), ("cancel", "cancelled", {"then": "cancel"})):
        lease = _begun(q)
        spawn(q, lease, 1, number="3")
        q.fail(lease, then=then, error="the reason\n  and its frames")
        expect("state", q.run(verbs.undo(lease.job_id, by="ada", reason="asked")).value, "queued")
        expect("saga", _saga(q, lease.job_id), ["failed", "the reason", result])
        expect(
            "the other call",
            q.value("select outcome from faultline.calls where job_id = %s and number = '2'", lease.job_id),
            None,
        )
        expect(
            "its child",
            q.value("select outcome from faultline.calls where job_id = %s and number = '3'", lease.job_id),
            "closed",
        )
        detail = q.value("select detail from faultline.journal where job_id = %s and event = 'undo_begun'", lease.job_id)
        expect("who, why, what", (detail["by"], detail["reason"], detail["was"]), ("ada", "asked", was))
        again = q.claim_one()
        expect("which", again.job_id, lease.job_id)
        expect("attempt", (again.attempt, again.max_attempts), (1, 1))
        with refused(q, "FL002", "can be undone"):
            q.run(verbs.undo(lease.job_id))
        q.complete(again)
    expect("the saga of another job", _saga(q, beside.job_id)[0], None)
    expect("invariants", q.broken_invariants(), [])


@probe("undo", "begin_undo")
def what_has_nothing_to_undo_is_not_undone(sessions: Sessions) -> None:
    q = sessions.open()
    left = q.new_lease(max_attempts=1)
    q.run(verbs.record(left, [{**_SAGA, "outcome": "done"}, _STEP]))
    plain = q.new_lease(max_attempts=1)
    beside = _begun(q)
    for lease in (left, plain):
        q.fail(lease, then="fail")
        with refused(q, "FL002", "has nothing to undo"):
            q.run(verbs.undo(lease.job_id))
        expect("state", q.state(lease.job_id).value, "failed")
    expect("another job's saga", _saga(q, beside.job_id)[0], None)


@probe("undo", "require_synchronous_commit")
def what_was_asked_to_be_undone_is_durable(sessions: Sessions) -> None:
    q = sessions.open()
    lease = _begun(q)
    q.fail(lease, then="fail")
    q.begin()
    q.execute("set local synchronous_commit = off")
    q.run(verbs.undo(lease.job_id))
    expect("synchronous_commit after undo", q.value("show synchronous_commit"), "on")
    q.rollback()


@probe("undo")
def a_job_is_undone_once_by_two_who_want_it(sessions: Sessions) -> None:
    q, other = sessions.open(), sessions.open()
    lease = _begun(q)
    q.fail(lease, then="fail")
    q.begin()
    q.run(verbs.undo(lease.job_id))
    waiting = other.start(lambda s: s.run(verbs.undo(lease.job_id)))
    sessions.wait_until_blocked(other, waiting)
    q.commit()
    with refused(other, "FL002", "can be undone"):
        waiting.result()


@probe("undo", "prune", "prune_flows")
def a_flow_is_not_forgotten_while_it_is_undone(sessions: Sessions) -> None:
    q, other = sessions.open(), sessions.open()
    sessions.clock.take()
    lease = _begun(q)
    q.fail(lease, then="fail")
    sessions.clock.advance(1000)
    q.begin()
    q.run(verbs.undo(lease.job_id))
    expect("pruned beside it", sessions.at_once(other, lambda s: s.run(verbs.prune("flows", older_than_seconds=100))), 0)
    q.commit()
    expect("state", q.state(lease.job_id).value, "queued")


@probe("undo")
def a_flow_that_is_being_forgotten_is_not_undone_yet(sessions: Sessions) -> None:
    q, other = sessions.open(), sessions.open()
    lease = _begun(q)
    q.fail(lease, then="fail")
    q.begin()
    q.execute("select from faultline.flows for update")
    with refused(other, "55P03", "try again"):
        sessions.at_once(other, lambda session: session.run(verbs.undo(lease.job_id)))
    q.rollback()
    q.execute("update faultline.flows set pruning = true")
    with refused(other, "55P03", "try again"):
        other.run(verbs.undo(lease.job_id))


@probe("undo")
def a_job_of_another_queue_is_not_undone(sessions: Sessions) -> None:
    q = sessions.open()
    lease = _begun(q)
    q.fail(lease, then="fail")
    with refused(q, "FL004", "no job"):
        q.run(verbs.undo(lease.job_id, only_queues=["another"]))
    succeeded = q.new_lease()
    q.complete(succeeded)
    with refused(q, "FL004", "no job"):
        q.run(verbs.undo(succeeded.job_id, only_queues=["another"]))
    with refused(q, "FL002", "has succeeded"):
        q.run(verbs.undo(succeeded.job_id))
    expect("state", q.run(verbs.undo(lease.job_id, only_queues=["default"])).value, "queued")


@probe("cancel", "begin_undo")
def a_job_that_is_cancelled_with_undo_is_queued_again_and_its_worker_can_write_nothing(sessions: Sessions) -> None:
    q = sessions.open()
    lease = _begun(q)
    expect("without", q.run(verbs.cancel(_begun(q).job_id, "withdrawn")).value, "cancelled")
    expect("state", q.run(verbs.cancel(lease.job_id, "withdrawn", undo=True)).value, "queued")
    expect("saga", _saga(q, lease.job_id), ["failed", "cancelled: withdrawn", {"then": "cancel"}])
    expect("written by its worker", [one.lease for one in q.run(verbs.record(lease, [_STEP])).stale], [lease])
    again = q.claim_one()
    expect("which", again.job_id, lease.job_id)
    expect("token", again.fencing_token > lease.fencing_token, True)
    # A second one that does not ask for it ends the job.
    expect("state", q.run(verbs.cancel(lease.job_id)).value, "cancelled")


@probe("cancel", "sweep", "cancel_children_batch", "begin_undo", "cancel_children", "end_badly")
def the_children_of_a_job_that_is_cancelled_with_undo_undo_their_sagas(sessions: Sessions) -> None:
    """Also the children of children. Without `undo` they are only cancelled: a retry of the job goes on with them."""
    q = sessions.open()
    for undo, state in ((False, "cancelled"), (True, "queued")):
        parent, (child,) = suspended_parent(q)
        spawn(q, child, 1)
        suspend(q, child)
        (grandchild,) = q.claim(queue="children")
        q.run(verbs.record(grandchild, [{**_SAGA, "number": "5"}]))
        q.run(verbs.cancel(parent, undo=undo))
        sweep_all(q)
        expect("the child", q.state(child.job_id).value, "cancelled")
        expect("its child", q.state(grandchild.job_id).value, state)
        q.run(verbs.cancel(grandchild.job_id))
    expect("invariants", q.broken_invariants(), [])


@probe("stopped_at", "reopen_flows", "retry")
def a_retry_does_not_call_again_what_is_undone(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease(max_attempts=1)
    q.run(verbs.record(lease, [_SAGA]))
    spawn(q, lease, 1, number="2", max_attempts=1)
    (child,) = q.claim(queue="children")
    q.fail(child, then="fail")
    q.run(verbs.collect_outcomes(lease, "2"))
    _fail_saga(q, lease)
    q.fail(lease, then="fail")
    q.run(verbs.retry(lease.job_id))
    expect("the child", q.state(child.job_id).value, "failed")
    expect(
        "the call", q.value("select outcome from faultline.calls where job_id = %s and number = '2'", lease.job_id), "failed"
    )
