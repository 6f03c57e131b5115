"""How fast jobs of a queue end in this worker, and how many to hold ahead of them."""

from __future__ import annotations

#: Jobs are claimed so long before they start, or as long as a claim takes.
_AHEAD_SECONDS = 0.03
#: Where all of them compute, statements take away from what they have: fewer, and larger ones.
_COMPUTING_AHEAD_SECONDS = 0.1
_WINDOW_SECONDS = 0.1


class Prefetch:
    """How many jobs per second have ended lately."""

    def __init__(self) -> None:
        self.per_second = 0.0
        self._since = 0.0
        self._finished = 0

    def ahead(self, claim_seconds: float, *, computes: bool) -> int:
        """How many jobs start until a claim is answered, and some more. `computes`: each that runs has a process."""
        return int(self.per_second * max(_COMPUTING_AHEAD_SECONDS if computes else _AHEAD_SECONDS, claim_seconds))

    def lasts(self, jobs: int, claim_seconds: float) -> bool:
        """Whether so many jobs last until a later claim is answered, even if it takes twice as long as the others."""
        return jobs > int(self.per_second * max(_AHEAD_SECONDS / 2, 2 * claim_seconds))

    def count(self, finished: int, now: float) -> None:
        self._finished += finished
        passed = now - self._since
        if passed >= _WINDOW_SECONDS:
            # After a long silence the old rate means nothing.
            weight = min(1.0, passed / (2 * _WINDOW_SECONDS))
            self.per_second += weight * (self._finished / passed - self.per_second)
            self._since, self._finished = now, 0
