"""A lease in this worker's hands: how long it may be trusted, and whether it is lost. Shared between threads."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

    from faultline.core.model import Lease
    from faultline.runtime.tally import Counts

#: One for all: held for a moment, hundreds of thousands of times.
_lock = threading.Lock()


class Hold:
    """Trust in a lease is counted from *before* the round trip that granted it: a slow answer must not lengthen it."""

    __slots__ = ("attempt", "began_at", "counts", "ending", "in_transaction", "lease", "lost", "renewed_at", "settled")

    def __init__(self, lease: Lease, granted_at: float, counts: Counts) -> None:
        self.lease = lease
        self.renewed_at = granted_at
        #: Where it is counted how its queue is doing.
        self.counts = counts
        #: When the attempt was begun, by the steady clock. None: it was not.
        self.began_at: float | None = None
        #: Why it was lost; None while it is not.
        self.lost: str | None = None
        #: The job's own transaction holds the row's lock: nobody can take the job meanwhile.
        self.in_transaction = False
        #: The job was completed inside its own transaction: nothing more is to be written.
        self.settled = False
        #: How the job ended is on its way to the database.
        self.ending = False
        #: What runs the job, and is cancelled when the lease is lost.
        self.attempt: asyncio.Task[Any] | None = None

    @property
    def trusted_until(self) -> float:
        return self.renewed_at + self.lease.lease_seconds

    @property
    def renew_at(self) -> float:
        # An ending is written long before the later time; renewed sooner, it would often be refused as not running any more.
        return self.renewed_at + self.lease.lease_seconds * (2 if self.ending else 1) / 3

    def lose(self, reason: str) -> bool:
        """Say that it is gone, from any thread. True the first time; the attempt is cancelled then."""
        with _lock:
            if self.lost is not None or self.settled:
                return False
            self.lost = reason
            self.counts.lost += 1
            attempt = self.attempt
        if attempt is not None:
            self._cancel(attempt)
        return True

    def run_by(self, attempt: asyncio.Task[Any]) -> None:
        """Cancel this task once the lease is lost; at once, if it is lost already."""
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
