"""How often a hint may lead to a look for jobs. The promise: a flood of hints is never a flood of statements, and
a job beside it waits for a fortieth of a second at most.

Any login can send hints, and some are useless in ordinary load too: another worker was quicker. So looks are paid from a
budget that refills, and each job that is granted pays for one: more jobs, more looks. When it is used up, the next hint
waits for the refill.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from uuid import UUID

#: Looks a second beside one for each job, and how many more at once.
_PER_SECOND, _AT_ONCE = 40.0, 20.0
_RECENT_JOBS_MIN = 1000


class HintBudget:
    """No more looks than a constant rate and one for each job."""

    def __init__(self) -> None:
        self._left = _AT_ONCE
        self._counted_at = 0.0

    def spend(self, now: float) -> None:
        """For a look after a hint."""
        self._refill(now)
        self._left -= 1.0

    def earn(self, jobs: int) -> None:
        """So many were granted, after a hint or not."""
        self._left = min(_AT_ONCE, self._left + jobs)

    def wait_seconds(self, now: float) -> float:
        """How long to wait before a hint is followed. 0: not at all."""
        self._refill(now)
        missing = 1.0 - self._left
        # What rounding leaves would be a wait in which no clock moves.
        return missing / _PER_SECOND if missing > 1e-6 else 0.0  # noqa: PLR2004

    def _refill(self, now: float) -> None:
        self._left = min(_AT_ONCE, self._left + (now - self._counted_at) * _PER_SECOND)
        self._counted_at = now


class RecentJobs:
    """The jobs of a worker's last small claims. Their hints come later, and lead to nothing."""

    def __init__(self) -> None:
        self._latest: set[UUID] = set()
        self._before: set[UUID] = set()

    def add(self, job_ids: Iterable[UUID]) -> None:
        if len(self._latest) >= _RECENT_JOBS_MIN:
            self._before, self._latest = self._latest, set()
        self._latest.update(job_ids)

    def include(self, job_ids: frozenset[UUID]) -> bool:
        """Whether there are any, and all of them were claimed."""
        return bool(job_ids) and all(one in self._latest or one in self._before for one in job_ids)
