"""Cancel, retry, recover, reconcile, prune: what people and upkeep do to jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from faultline.core.errors import IllegalTransition, JobNotFound, JobRejected
from faultline.core.model import JobState, Reason, Settled, Submission
from faultline.store import queue as verbs
from tests.driver import reasons

if TYPE_CHECKING:
    from tests.driver import Clock, Driver, Sessions


def test_a_queued_job_can_be_cancelled(queue: Driver) -> None:
    job_id = queue.enqueue()

    assert queue.run(verbs.cancel(job_id, "not needed")) is JobState.CANCELLED

    assert queue.job(job_id).last_error == "cancelled: not needed"
    assert queue.claim() == []
    (entry,) = queue.journal(job_id)
    assert (entry.event, entry.detail) == ("cancelled", {"was": "queued", "reason": "not needed"})


def test_from_its_cancel_on_a_running_job_can_write_nothing(queue: Driver) -> None:
    job_id = queue.enqueue()
    lease = queue.claim_one()
    queue.connection.execute("listen faultline")

    queue.run(verbs.cancel(job_id))

    assert reasons(queue.complete(lease)) == [Reason.NOT_RUNNING]
    assert reasons(queue.renew(lease)) == [Reason.NOT_RUNNING]
    (notice,) = queue.connection.notifies(timeout=0)
    assert str(job_id) in notice.payload


def test_cancelling_twice_is_as_good_as_once(queue: Driver) -> None:
    job_id = queue.enqueue()
    queue.run(verbs.cancel(job_id))

    assert queue.run(verbs.cancel(job_id)) is JobState.CANCELLED

    assert len(queue.journal(job_id)) == 1


@pytest.mark.parametrize("ending", ["succeeded", "failed"])
def test_a_job_that_has_ended_cannot_be_cancelled(queue: Driver, ending: str) -> None:
    job_id = queue.enqueue()
    lease = queue.claim_one()
    queue.complete(lease) if ending == "succeeded" else queue.fail(lease, then="fail")

    with pytest.raises(IllegalTransition, match=f"has {ending} and cannot be cancelled"):
        queue.run(verbs.cancel(job_id))

    assert queue.state(job_id) == ending


def test_a_job_that_is_cancelled_while_it_completes_ends_one_way_only(queue: Driver, sessions: Sessions) -> None:
    job_id = queue.enqueue()
    lease = queue.claim_one()
    operator = sessions.open()

    operator.begin()
    operator.do(lambda q: q.run(verbs.cancel(job_id)))
    assert queue.complete(lease) == Settled(busy=[lease])
    operator.commit()

    assert reasons(queue.complete(lease)) == [Reason.NOT_RUNNING]
    assert queue.state(job_id) is JobState.CANCELLED
    assert queue.broken_invariants() == []


@pytest.mark.parametrize("verb", [verbs.cancel, verbs.retry])
def test_an_unknown_job_is_said_to_be_unknown(queue: Driver, verb: object) -> None:
    with pytest.raises(JobNotFound, match="there is no job"):
        queue.run(verb(uuid4()))  # type: ignore[operator]


@pytest.mark.parametrize("ending", ["failed", "cancelled"])
def test_a_retried_job_has_all_its_attempts_again_but_never_an_old_token(queue: Driver, ending: str) -> None:
    job_id = queue.enqueue(max_attempts=1)
    first = queue.claim_one()
    queue.fail(first, then="fail" if ending == "failed" else "cancel")

    assert queue.run(verbs.retry(job_id)) is JobState.QUEUED

    second = queue.claim_one()
    assert (second.attempt, second.fencing_token) == (1, 2)
    assert reasons(queue.complete(first)) == [Reason.TOKEN_MISMATCH]
    assert queue.complete(second) == Settled()
    assert [entry.event for entry in queue.journal(job_id)][1] == "retried"


@pytest.mark.parametrize("state", ["queued", "running", "succeeded"])
def test_only_a_job_that_ended_badly_can_be_retried(queue: Driver, state: str) -> None:
    job_id = queue.enqueue()
    if state != "queued":
        lease = queue.claim_one()
        if state == "succeeded":
            queue.complete(lease)

    with pytest.raises(IllegalTransition, match=state):
        queue.run(verbs.retry(job_id))

    assert queue.state(job_id) == state


# recover


def test_recover_voids_every_lease_and_lifts_every_token_above_the_floor(queue: Driver) -> None:
    ids = [queue.enqueue(), queue.enqueue(), queue.enqueue()]
    held = queue.claim_one()
    queue.fail(queue.claim_one(), then="fail")

    assert queue.run(verbs.recover(500)) == (500, 3, 1)

    assert [queue.job(job_id).fencing_token for job_id in ids] == [500, 500, 500]
    assert [queue.state(job_id) for job_id in ids] == ["queued", "failed", "queued"]
    assert reasons(queue.complete(held)) == [Reason.TOKEN_MISMATCH]
    again = queue.claim_one()
    assert (again.job_id, again.fencing_token, again.attempt) == (ids[0], 501, 1)


def test_recover_chooses_a_floor_far_above_anything_known(queue: Driver) -> None:
    queue.enqueue()
    queue.release(queue.claim_one())

    floor, lifted, requeued = queue.run(verbs.recover())

    assert (floor, lifted, requeued) == (1_000_001, 1, 0)


def test_a_job_that_was_lost_and_is_sent_again_starts_above_the_floor(queue: Driver) -> None:
    job_id = queue.enqueue()
    assert queue.claim_one().fencing_token == 1
    with queue.connection.transaction():
        queue.connection.execute("set local session_replication_role = replica")
        queue.connection.execute("delete from faultline.open_jobs")  # as a failover that lost it

    queue.run(verbs.recover(500))
    queue.enqueue(id=job_id)

    assert queue.claim_one().fencing_token == 501


def test_recover_never_lowers_a_token(queue: Driver) -> None:
    waiting, running = queue.enqueue(), queue.enqueue(priority=-1)
    queue.run(verbs.recover(1000))
    queue.claim_one()

    queue.run(verbs.recover(5))

    assert (queue.job(waiting).fencing_token, queue.job(running).fencing_token) == (1000, 1001)


@pytest.mark.parametrize("floor", [-1, 2**63 - 1])
def test_a_floor_that_leaves_tokens_no_room_to_grow_is_refused(queue: Driver, floor: int) -> None:
    job_id = queue.enqueue()

    with pytest.raises(JobRejected, match="floor"):
        queue.run(verbs.recover(floor))

    assert queue.job(job_id).fencing_token == 0


def test_recover_waits_for_a_fenced_transaction_and_does_not_deadlock_with_it(queue: Driver, sessions: Sessions) -> None:
    job_id = queue.enqueue()
    lease = queue.claim_one()
    worker, operator = sessions.open(), sessions.open()

    worker.begin()
    worker.do(lambda q: q.run(verbs.fence(lease)))
    answer = operator.start(lambda q: q.run(verbs.recover()))
    sessions.wait_until_blocked(operator, answer)
    assert worker.do(lambda q: q.complete(lease)) == Settled()
    worker.commit()

    assert answer.result()[1:] == (0, 0)
    assert queue.state(job_id) is JobState.SUCCEEDED


# reconcile


def test_an_open_row_of_a_job_that_is_done_is_closed(queue: Driver) -> None:
    """As after a restore that brought the open row back: the ledger is right."""
    job_id = queue.enqueue()
    other = queue.enqueue()
    with queue.connection.transaction():
        queue.connection.execute("set local faultline.verb = 'complete'")
        queue.connection.execute(
            "insert into faultline.ledger select id, 7, now(), now(), now(), 0, 1, 5, 'w/1', queue, task, null, args, null"
            " from faultline.open_jobs where id = %s",
            (job_id,),
        )
    assert queue.broken_invariants() == ["a_job_is_open_or_done"]

    assert queue.run(verbs.reconcile()) == [job_id]

    assert queue.broken_invariants() == []
    assert (queue.state(job_id), queue.state(other)) == (JobState.SUCCEEDED, JobState.QUEUED)
    assert [entry.event for entry in queue.journal(job_id)] == ["reconciled"]


# prune


def test_pruning_forgets_what_is_old_enough_in_small_bites(queue: Driver, clock: Clock) -> None:
    queue.run(verbs.enqueue_many([Submission("t")] * 5))
    leases = queue.claim()
    queue.run(verbs.step(leases[0], "s", 1))
    queue.complete(*leases)
    clock.advance(100)
    queue.enqueue()
    queue.complete(queue.claim_one())

    bites = [queue.run(verbs.prune("ledger", older_than_seconds=60, max_rows=3)) for _ in range(3)]

    assert bites == [3, 2, 0]
    assert queue.value("select count(*) from faultline.ledger") == 1
    assert queue.value("select count(*) from faultline.steps") == 0
    assert queue.broken_invariants() == []


def test_pruning_failed_jobs_leaves_the_others_alone(queue: Driver, clock: Clock) -> None:
    ids = [queue.enqueue() for _ in range(4)]
    queue.fail(queue.claim_one(), then="fail")
    queue.run(verbs.cancel(ids[1]))
    queue.claim_one()
    clock.advance(100)

    assert queue.run(verbs.prune("failed", older_than_seconds=60)) == 2

    assert {queue.state(ids[2]), queue.state(ids[3])} == {JobState.RUNNING, JobState.QUEUED}


def test_a_key_is_never_pruned_while_its_job_is_open(queue: Driver, clock: Clock) -> None:
    queue.enqueue(idempotency_key="open")
    queue.enqueue("done", idempotency_key="done", priority=-1)
    queue.complete(queue.claim_one())
    clock.advance(1000)

    assert queue.run(verbs.prune("keys", older_than_seconds=60)) == 1

    assert queue.value("select array_agg(key) from faultline.keys") == ["open"]


def test_a_key_outlives_the_ledger_row_of_its_job(queue: Driver, clock: Clock) -> None:
    job_id = queue.enqueue(idempotency_key="k")
    queue.complete(queue.claim_one())
    clock.advance(1000)
    queue.run(verbs.prune("ledger", older_than_seconds=60))

    (placed,) = queue.run(verbs.enqueue_many([Submission("t", idempotency_key="k")]))

    assert (placed.job_id, placed.created) == (job_id, False)


@pytest.mark.parametrize("ending", ["failed", "succeeded"])
def test_an_id_that_is_enqueued_again_after_it_was_pruned_never_sees_an_old_token(
    queue: Driver, clock: Clock, ending: str
) -> None:
    job_id = queue.enqueue(id=uuid4())
    queue.release(queue.claim_one())
    last = queue.claim_one()
    queue.complete(last) if ending == "succeeded" else queue.fail(last, then="fail")
    clock.advance(1000)
    queue.run(verbs.prune("ledger", older_than_seconds=60))
    queue.run(verbs.prune("failed", older_than_seconds=60))

    assert queue.enqueue(id=job_id) == job_id

    assert queue.claim_one().fencing_token == 3
    assert queue.broken_invariants() == []


def test_pruning_the_journal(queue: Driver, clock: Clock) -> None:
    queue.enqueue()
    queue.fail(queue.claim_one())
    clock.advance(1000)

    assert queue.run(verbs.prune("journal", older_than_seconds=60)) == 1


def test_pruning_leaves_locked_rows_for_the_next_time(queue: Driver, sessions: Sessions, clock: Clock) -> None:
    queue.run(verbs.enqueue_many([Submission("t")] * 3))
    queue.complete(*queue.claim())
    clock.advance(1000)
    reader = sessions.open()
    reader.begin()
    reader.connection.execute("select from faultline.ledger limit 1 for update")

    assert queue.run(verbs.prune("ledger", older_than_seconds=60)) == 2


@pytest.mark.parametrize(("what", "age"), [("everything", 60), ("ledger", -1)])
def test_pruning_what_makes_no_sense_is_refused(queue: Driver, what: str, age: float) -> None:
    with pytest.raises(JobRejected):
        queue.run(verbs.prune(what, older_than_seconds=age))
