"""How fast jobs of a queue end in this worker."""

from __future__ import annotations

_WINDOW_SECONDS = 0.1


class Pace:
    """How many jobs per second have ended lately."""

    def __init__(self) -> None:
        self.per_second = 0.0
        self._since = 0.0
        self._finished = 0

    def count(self, finished: int, now: float) -> None:
        self._finished += finished
        passed = now - self._since
        if passed >= _WINDOW_SECONDS:
            # After a long silence the old rate means nothing.
            weight = min(1.0, passed / (2 * _WINDOW_SECONDS))
            self.per_second += weight * (self._finished / passed - self.per_second)
            self._since, self._finished = now, 0
