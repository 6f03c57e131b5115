"""Leases that a notification calls lost. Any login can send one, so the worker asks the database before it drops a lease."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from uuid import UUID

    from faultline.core.model import Lease

#: The first doubt about a lease is checked at once, the next ones no sooner than this: a flood of notifications must not
#: become a flood of statements.
LOOK_SECONDS = 1.0
#: So many jobs are remembered that were called cancelled. A claim may have got one whose answer is on its way.
_REMEMBERED_MAX = 2000


class CancellationChecks:
    """Which leases to ask about, and when. Not thread-safe: its owner holds a lock."""

    def __init__(self) -> None:
        self._doubted: set[Lease] = set()
        self._looked_at: dict[Lease, float] = {}
        #: The jobs of the last notifications, in their order.
        self._called: dict[UUID, None] = {}

    def add(self, job_ids: Collection[UUID], held: Iterable[Lease]) -> bool:
        """Doubt the held leases of these jobs. True if a doubt is new."""
        self._called.update(dict.fromkeys(job_ids))
        for job_id in [*islice(self._called, max(0, len(self._called) - _REMEMBERED_MAX))]:
            del self._called[job_id]
        return self._doubt(lease for lease in held if lease.job_id in job_ids)

    def took(self, leases: Iterable[Lease]) -> bool:
        """Doubt those of these new leases whose jobs were called cancelled before the answer to the claim came."""
        return bool(self._called) and self._doubt(lease for lease in leases if lease.job_id in self._called)

    def _doubt(self, leases: Iterable[Lease]) -> bool:
        new = set(leases) - self._doubted
        self._doubted |= new
        return bool(new)

    def due(self, now: float, held: Collection[Lease]) -> list[Lease]:
        """The leases to ask about now. Leases that are no longer held are forgotten."""
        self._doubted = {lease for lease in self._doubted if lease in held}
        self._looked_at = {lease: at for lease, at in self._looked_at.items() if lease in held and now < at + LOOK_SECONDS}
        return [lease for lease in self._doubted if lease not in self._looked_at]

    def answered(self, leases: Iterable[Lease], now: float) -> None:
        for lease in leases:
            self._doubted.discard(lease)
            self._looked_at[lease] = now

    def next_due(self) -> list[float]:
        """When to look again, for each doubted lease that was checked a moment ago."""
        return [self._looked_at[lease] + LOOK_SECONDS for lease in self._doubted if lease in self._looked_at]
