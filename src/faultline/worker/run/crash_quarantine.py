"""Which jobs may run beside each other in this process, so that a job that kills its workers is found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from faultline.worker.write.release_policy import PuttingOff

if TYPE_CHECKING:
    from uuid import UUID

    from faultline.core.model import Lease
    from faultline.worker.lease.held_lease import HeldLease

Asker = TypeVar("Asker")


class CrashQuarantine(Generic[Asker]):
    """Concerns only jobs whose start is marked. A job that was reaped once runs beside a quarter of the usual number of such
    jobs, one that was reaped twice beside a sixteenth; after that it runs alone among them. If the worker dies then, that
    job did it, and only its attempt counts.
    """

    ALONE_AFTER = 3

    def __init__(self) -> None:
        self._marked = 0
        self._suspects = 0
        self._alone = False
        #: The job that waits to run alone, until its lease is lost.
        self._alone_wanted: HeldLease | None = None
        self._turned_away: set[Asker] = set()
        self._putting_off = PuttingOff()

    def admits(self, hold: HeldLease, concurrency: int, asker: Asker) -> bool:
        admitted = self._admits(hold, concurrency)
        if not admitted:
            self._turned_away.add(asker)
        return admitted

    def _admits(self, hold: HeldLease, concurrency: int) -> bool:
        reaps = hold.lease.reaps
        if reaps >= self.ALONE_AFTER:
            # Announced, so that no further marked job starts before it.
            self._alone_wanted = hold if self._marked > 0 else None
            return self._alone_wanted is None
        if self._alone or (self._alone_wanted is not None and self._alone_wanted.lost is None):
            return False
        return reaps == 0 or self._suspects < max(1, concurrency >> 2 * reaps)

    def awaits(self, hold: HeldLease) -> bool:
        """Whether this job waits to run alone."""
        return self._alone_wanted is hold

    def put_off(self, job_id: UUID, now: float) -> float | None:
        """How long to leave a refused job to other workers."""
        return self._putting_off.seconds(job_id, now)

    def enter(self, lease: Lease) -> None:
        self._marked += 1
        self._suspects += lease.reaps > 0
        if lease.reaps >= self.ALONE_AFTER:
            self._alone, self._alone_wanted = True, None

    def leave(self, lease: Lease) -> set[Asker]:
        """Returns those who were refused before and may ask again."""
        self._marked -= 1
        self._suspects -= lease.reaps > 0
        if lease.reaps >= self.ALONE_AFTER:
            self._alone = False
        turned_away, self._turned_away = self._turned_away, set()
        return turned_away
