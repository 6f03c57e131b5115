"""Every way to lose a lease, and the reason that a later write must be refused with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from faultline.core.model import Reason
from faultline.store import verbs

if TYPE_CHECKING:
    from faultline.core.model import Lease
    from tests.driver import Clock, Driver


def reaped(queue: Driver, clock: Clock, lease: Lease) -> None:
    clock.advance(31)
    assert [job.job_id for job in queue.reap()] == [lease.job_id]


def taken_by_another(queue: Driver, clock: Clock, lease: Lease) -> None:
    reaped(queue, clock, lease)
    queue.claim_one(worker="another")


def taken_by_the_same_worker(queue: Driver, clock: Clock, lease: Lease) -> None:
    reaped(queue, clock, lease)
    queue.claim_one(worker=lease.owner.split("/")[0])


def done_by_another(queue: Driver, clock: Clock, lease: Lease) -> None:
    reaped(queue, clock, lease)
    queue.complete(queue.claim_one(worker="another"))


def released(queue: Driver, _: Clock, lease: Lease) -> None:
    queue.release(lease)


def cancelled(queue: Driver, _: Clock, lease: Lease) -> None:
    queue.run(verbs.cancel(lease.job_id))


def failed(queue: Driver, _: Clock, lease: Lease) -> None:
    queue.fail(lease, then="fail")


LOSSES = [
    (reaped, Reason.LEASE_LOST),
    (released, Reason.LEASE_LOST),
    (taken_by_another, Reason.TOKEN_MISMATCH),
    (taken_by_the_same_worker, Reason.TOKEN_MISMATCH),
    (done_by_another, Reason.TOKEN_MISMATCH),
    (cancelled, Reason.NOT_RUNNING),
    (failed, Reason.NOT_RUNNING),
]
