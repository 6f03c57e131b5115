"""A lease that this worker holds: how long to trust it, and whether it is lost. Shared between threads."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Protocol

from faultline.core import forks

if TYPE_CHECKING:
    import asyncio

    from faultline.attempt.attempt import Attempt
    from faultline.core.model import Lease
    from faultline.history.program import Program
    from faultline.worker.base.counters import Counts

#: How often to try a lease again that the job's own transaction kept from being renewed. While the heartbeats come, a reap
#: leaves it alone for some seconds.
BUSY_SECONDS = 1.0
#: A cancelled attempt that takes longer to end is left behind.
LEAVE_SECONDS = 5.0
#: One lock for all holds: each needs it only for a moment.
_lock = threading.Lock()


class Runs(Protocol):
    """What a hold needs of its executor."""

    @property
    def state(self) -> dict[str, Any]: ...

    def seen(self, hold: HeldLease) -> Attempt: ...

    def leave_behind(self, hold: HeldLease) -> None: ...


class Source(Protocol):
    """Where holds come from: a feed."""

    #: Of its jobs that run here: those that compute, and those of them that wait for a process.
    computing: int
    queued: int
    #: None: its queue has no limits.
    within: set[HeldLease] | None

    def follow(self) -> HeldLease | None:
        """The next hold to run, in the asyncio task of one that has just ended."""

    def finished(self, lease: Lease) -> None: ...


class HeldLease:
    """Trust counts from *before* the round trip of the claim: a slow answer must not lengthen it."""

    __slots__ = (
        "attempt",
        "began_at",
        "busy_at",
        "by",
        "completed",
        "counts",
        "distrusted",
        "ending",
        "epoch",
        "failed_by",
        "generation",
        "in_transaction",
        "job",
        "lease",
        "lost",
        "raised",
        "renewed_at",
        "slot",
        "unawaited",
    )

    def __init__(self, lease: Lease, asked_at: float, counts: Counts) -> None:
        self.lease = lease
        self.renewed_at = asked_at
        #: Of the process that has the lease. A forked process has a copy, but no lease.
        self.generation = forks.generation
        #: The counts of its queue.
        self.counts = counts
        #: When the attempt started, by the steady clock; None: it did not.
        self.began_at: float | None = None
        #: Why it was lost; None: it is not.
        self.lost: str | None = None
        #: Calls that its task made and has not awaited; None: it made none.
        self.unawaited: set[Any] | None = None
        #: Lost only by this worker's clock: the database may still accept its completion.
        self.distrusted = False
        #: The job's own transaction holds the row's lock: nobody else can claim the job.
        self.in_transaction = False
        #: When a renewal last found the row locked by that transaction. The lease may have expired since.
        self.busy_at: float | None = None
        #: The job completed itself in its own transaction: there is nothing left to write.
        self.completed = False
        #: Its ending is on its way to the database.
        self.ending = False
        #: What the database raised in the job's own sessions. It does not count against the job.
        self.failed_by: list[BaseException] | None = None
        #: Its slot in the memory shared with the companion; -1: none.
        self.slot = -1
        #: How often the companion had released jobs when this one was claimed.
        self.epoch = 0
        #: The asyncio task that runs the job. It is cancelled when the lease is lost.
        self.attempt: asyncio.Task[Any] | None = None
        #: Set for tasks that take their job.
        self.job: Attempt | None = None
        #: The executor that runs it.
        self.by: Runs | None = None
        #: What the task raised, if observers want to know.
        self.raised: BaseException | None = None

    @property
    def program(self) -> Program | None:
        """What the running task calls and waits for; None: it has not, and the job has no history."""
        return None if self.job is None else self.job.program

    @property
    def state(self) -> dict[str, Any]:
        """What the lifespans of its worker have opened."""
        return {} if self.by is None else self.by.state

    def seen(self) -> Attempt:
        """What its task and its hooks see of it: the task's own job, or one that can write nothing."""
        if self.job is not None:
            return self.job
        assert self.by is not None  # noqa: S101 - it was started
        return self.by.seen(self)

    @property
    def trusted_until(self) -> float:
        return self.renewed_at + self.lease.lease_seconds

    @property
    def renew_at(self) -> float:
        if self.busy_at is not None:
            # When the transaction ends, an expired lease may be reaped. Renew it before.
            return self.busy_at + BUSY_SECONDS
        # An ending is usually written before the later time. A renewal would often be refused then: the job has ended.
        return self.renewed_at + self.lease.lease_seconds * (2 if self.ending else 1) / 3

    def renewed(self, asked_at: float) -> None:
        self.renewed_at, self.busy_at = asked_at, None

    def lose(self, reason: str, *, distrusted: bool = False) -> bool:
        """Mark it as lost and cancel the attempt, from any thread. True the first time.

        `distrusted`: the database has not said so, but did not answer for as long as the lease lasts.
        """
        with _lock:
            if self.lost is not None or self.completed:
                self.distrusted = self.distrusted and distrusted
                return False
            self.lost, self.distrusted = reason, distrusted
            self.counts.lost += 1
            attempt = self.attempt
        if attempt is not None:
            self._cancel(attempt)
        return True

    def run_by(self, attempt: asyncio.Task[Any], by: Runs | None = None) -> None:
        """Cancel this task when the lease is lost, or now if it is. `by` leaves it behind if it ignores that."""
        self.by = by
        with _lock:
            self.attempt = attempt
            lost = self.lost is not None
        if lost:
            self._cancel(attempt)

    def _cancel(self, attempt: asyncio.Task[Any]) -> None:
        loop = attempt.get_loop()
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._cancel_now, attempt)

    def _cancel_now(self, attempt: asyncio.Task[Any]) -> None:
        # The attempt may have ended, and its task may run another job.
        if self.attempt is attempt:
            attempt.cancel()
            attempt.get_loop().call_later(LEAVE_SECONDS, self._leave, attempt)

    def _leave(self, attempt: asyncio.Task[Any]) -> None:
        if self.attempt is attempt and self.by is not None:
            self.by.leave_behind(self)
