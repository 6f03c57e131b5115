"""How long to wait after a failure: longer each time, up to a limit, and never all at the same moment."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random

#: The default delay after a job's first failed attempt, and the longest one. `faultline.fail` has the same defaults.
_ATTEMPT_SECONDS, _ATTEMPT_SECONDS_MAX = 2.0, 3600.0
_DOUBLINGS_MAX = 20


def doubled(seconds: float, times: int, seconds_max: float) -> float:
    """Twice as long each time: `seconds` the first time, `seconds_max` at most."""
    return min(seconds * 2.0 ** min(times - 1, _DOUBLINGS_MAX), seconds_max)


def jittered(seconds: float, chance: random.Random) -> float:
    """Spread retries, so that jobs that failed together do not run again together."""
    return float(seconds * chance.uniform(0.75, 1.25))


def after_attempt(attempt: int) -> float:
    """How long a job waits after this attempt has failed, before jitter."""
    return doubled(_ATTEMPT_SECONDS, attempt, _ATTEMPT_SECONDS_MAX)


class Pause:
    """The pauses between tries of one thing, each twice as long as the one before."""

    def __init__(self, seconds_min: float, seconds_max: float) -> None:
        self._seconds_min = self._seconds = seconds_min
        self._seconds_max = seconds_max

    def next(self) -> float:
        seconds, self._seconds = self._seconds, min(self._seconds * 2, self._seconds_max)
        return seconds

    def reset(self) -> None:
        self._seconds = self._seconds_min
