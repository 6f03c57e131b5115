"""A lease in this worker's hands: how long it may be trusted, and whether it is lost. Shared between threads."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from faultline.core import forks

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from faultline.app.attempt import Attempt
    from faultline.core.model import Lease
    from faultline.worker.tally import Counts

#: A lease that could not be renewed because of the job's own transaction is asked for so often. A reap leaves it alone for
#: some seconds while its worker's heartbeats come.
BUSY_SECONDS = 1.0
#: How long a cancelled attempt may take to end. After that it is left behind.
LEAVE_SECONDS = 5.0
#: One for all: held for a moment, hundreds of thousands of times.
_lock = threading.Lock()


class Hold:
    """Trust in a lease is counted from *before* the round trip that granted it: a slow answer must not lengthen it."""

    __slots__ = (
        "attempt",
        "began_at",
        "busy_at",
        "counts",
        "distrusted",
        "ending",
        "epoch",
        "failed_by",
        "generation",
        "in_transaction",
        "job",
        "lease",
        "leave",
        "lost",
        "place",
        "renewed_at",
        "settled",
    )

    def __init__(self, lease: Lease, granted_at: float, counts: Counts) -> None:
        self.lease = lease
        self.renewed_at = granted_at
        #: Of the process whose lease it is. One that is forked from it has a copy, and no lease.
        self.generation = forks.generation
        #: Where it is counted how its queue is doing.
        self.counts = counts
        #: When the attempt was begun, by the steady clock. None: it was not.
        self.began_at: float | None = None
        #: Why it was lost; None while it is not.
        self.lost: str | None = None
        #: It was lost by our own clock alone; the database has not said so and may still accept its completion.
        self.distrusted = False
        #: The job's own transaction holds the row's lock: nobody can take the job meanwhile.
        self.in_transaction = False
        #: When a renewal last found the row locked by that transaction: nothing was renewed, and the lease may have run out.
        self.busy_at: float | None = None
        #: The job was completed inside its own transaction: nothing more is to be written.
        self.settled = False
        #: How the job ended is on its way to the database.
        self.ending = False
        #: What the database raised in the job's own sessions, and must not count against the job.
        self.failed_by: list[BaseException] | None = None
        #: Where it stands in the memory shared with the companion (nowhere: -1).
        self.place = -1
        #: How often the companion had given leases back when it was asked for.
        self.epoch = 0
        #: What runs the job, and is cancelled when the lease is lost.
        self.attempt: asyncio.Task[Any] | None = None
        #: What the task writes through, where it takes its job and is async.
        self.job: Attempt | None = None
        #: Called if the attempt still runs some seconds after it was cancelled.
        self.leave: Callable[[Hold], None] | None = None

    @property
    def trusted_until(self) -> float:
        return self.renewed_at + self.lease.lease_seconds

    @property
    def renew_at(self) -> float:
        if self.busy_at is not None:
            # Once the transaction has ended a lease that has run out may be taken: renew before that.
            return self.busy_at + BUSY_SECONDS
        # An ending is written long before the later time; renewed sooner, it would often be refused as not running any more.
        return self.renewed_at + self.lease.lease_seconds * (2 if self.ending else 1) / 3

    def renewed(self, asked_at: float) -> None:
        self.renewed_at, self.busy_at = asked_at, None

    def lose(self, reason: str, *, distrusted: bool = False) -> bool:
        """Say that it is gone, from any thread. True the first time; the attempt is cancelled then.

        `distrusted`: nobody said so, but no answer came for as long as the lease lasts.
        """
        with _lock:
            if self.lost is not None or self.settled:
                self.distrusted = self.distrusted and distrusted
                return False
            self.lost, self.distrusted = reason, distrusted
            self.counts.lost += 1
            attempt = self.attempt
        if attempt is not None:
            self._cancel(attempt)
        return True

    def run_by(self, attempt: asyncio.Task[Any], leave: Callable[[Hold], None] | None = None) -> None:
        """Cancel this task once the lease is lost; at once, if it is lost already. `leave` it if it does not mind."""
        self.leave = leave
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
        # The attempt may have ended meanwhile, and its task be running another job.
        if self.attempt is attempt:
            attempt.cancel()
            attempt.get_loop().call_later(LEAVE_SECONDS, self._leave, attempt)

    def _leave(self, attempt: asyncio.Task[Any]) -> None:
        if self.attempt is attempt and self.leave is not None:
            self.leave(self)
