"""Every verb that writes under a lease, called the same way, and every way to lose one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from faultline.store import verbs
from faultline_proof.probes.probe import expect

if TYPE_CHECKING:
    from collections.abc import Callable

    from faultline.core.model import Lease, Unwritten
    from faultline_proof.sessions import Session


BATCH_VERBS: dict[str, Callable[..., Unwritten]] = {
    "complete": lambda q, *leases: q.complete(*leases),
    "renew": lambda q, *leases: q.renew(*leases),
    "fail": lambda q, *leases: q.fail(*leases),
    "release": lambda q, *leases: q.release(*leases),
    "record_start": lambda q, *leases: q.record_start(*leases),
}
SINGLE_VERBS: dict[str, Callable[[Session, Lease], Unwritten]] = {
    "step": lambda q, lease: q.step(lease),
    "progress": lambda q, lease: q.progress(lease),
}
VERBS = {**BATCH_VERBS, **SINGLE_VERBS}
WRITES = ("complete", "renew", "fail", "release", "record_start", "step", "progress", "lock_lease")


# Every way to lose a lease, and the reason that a later write must be refused with.


def reaped(q: Session, lease: Lease) -> None:
    q.execute("update faultline.open_jobs set lease_expires_at = created_at where id = %s", lease.job_id)
    expect("jobs reaped", [job.job_id for job in q.reap()], [lease.job_id])


def taken(q: Session, lease: Lease) -> None:
    reaped(q, lease)
    q.claim_one(worker="another")


def _taken_by_the_same_worker(q: Session, lease: Lease) -> None:
    reaped(q, lease)
    q.claim_one(worker=lease.owner.split("/")[0])


def _done_by_another(q: Session, lease: Lease) -> None:
    reaped(q, lease)
    q.complete(q.claim_one(worker="another"))


def _released(q: Session, lease: Lease) -> None:
    q.release(lease)


def _cancelled(q: Session, lease: Lease) -> None:
    q.run(verbs.cancel(lease.job_id))


def _failed(q: Session, lease: Lease) -> None:
    q.fail(lease, then="fail")


LOSSES: dict[Callable[[Session, Lease], None], str] = {
    reaped: "lease_lost",
    _released: "lease_lost",
    taken: "token_mismatch",
    _taken_by_the_same_worker: "token_mismatch",
    _done_by_another: "token_mismatch",
    _cancelled: "not_running",
    _failed: "not_running",
}
