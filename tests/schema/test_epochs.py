"""The life of a job as it can be told afterwards, from its record and its journal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from faultline.core.journal import EpochEnd
from faultline.explain.epochs import Epoch, epochs
from faultline.store import verbs

if TYPE_CHECKING:
    from uuid import UUID

    from tests.driver import Clock, Driver


def life(queue: Driver, job_id: UUID) -> list[Epoch]:
    return epochs(queue.job(job_id), queue.journal(job_id))


def test_the_lease_race_is_told_with_its_refused_write(queue: Driver, clock: Clock) -> None:
    job_id = queue.enqueue()
    frozen = queue.claim_one(worker="frozen")
    queue.renew(frozen)
    clock.advance(31)
    queue.reap()
    second = queue.claim_one(worker="second")
    queue.complete(frozen)
    queue.complete(second)

    one, two = life(queue, job_id)

    assert (one.token, one.owner, one.end, one.reason, one.renewals) == (
        1, frozen.owner, EpochEnd.REAPED, "lease_expired", 1
    )  # fmt: skip
    assert one.claimed_at is not None
    assert one.ended_at is not None
    assert (one.ended_at - one.claimed_at).total_seconds() == 31
    assert one.lease_expires_at is not None
    assert (one.lease_expires_at - one.claimed_at).total_seconds() == 30
    assert [(write.verb, write.reason, write.current_token) for write in one.refusals] == [("complete", "token_mismatch", 2)]
    assert (two.token, two.owner, two.end, two.refusals) == (2, second.owner, EpochEnd.SUCCEEDED, ())
    assert two.ended_at == queue.job(job_id).finished_at


def test_failed_attempts_are_told_with_their_errors_and_a_running_one_is_open(queue: Driver) -> None:
    job_id = queue.enqueue()
    queue.fail(queue.claim_one(), error="no such table")
    lease = queue.claim_one()

    one, two = life(queue, job_id)

    assert (one.end, one.reason, one.attempt) == (EpochEnd.FAILED, "no such table", 1)
    assert one.claimed_at is not None
    assert (two.end, two.owner, two.ended_at) == (EpochEnd.RUNNING, lease.owner, None)
    assert two.lease_expires_at is not None


def test_a_cancel_ends_an_epoch_only_if_one_was_running(queue: Driver) -> None:
    waiting, running = queue.enqueue(priority=1), queue.enqueue()
    lease = queue.claim_one()
    for job_id in (waiting, running):
        queue.run(verbs.cancel(job_id, "changed my mind"))

    assert life(queue, waiting) == []
    (epoch,) = life(queue, running)
    assert (epoch.end, epoch.owner, epoch.reason) == (EpochEnd.CANCELLED, lease.owner, "changed my mind")


def test_recover_ends_the_epoch_whose_token_it_lifted(queue: Driver) -> None:
    job_id = queue.enqueue()
    lease = queue.claim_one()
    queue.run(verbs.recover(1000))

    (epoch,) = life(queue, job_id)

    assert (epoch.token, epoch.owner, epoch.end) == (1, lease.owner, EpochEnd.RECOVERED)


def test_a_lease_that_was_given_back_is_known_only_by_its_late_write(queue: Driver) -> None:
    job_id = queue.enqueue()
    lease = queue.claim_one()
    queue.release(lease)
    assert life(queue, job_id) == []

    queue.complete(lease)

    (epoch,) = life(queue, job_id)
    assert (epoch.token, epoch.owner, epoch.end) == (1, lease.owner, EpochEnd.UNRECORDED)
    assert [write.reason for write in epoch.refusals] == ["lease_lost"]
