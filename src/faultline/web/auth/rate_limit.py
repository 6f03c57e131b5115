"""Rate limits: one token bucket per caller. In memory, so per server process."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from typing import TYPE_CHECKING

from faultline.web.server.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Callable

_CALLERS_MAX = 10_000


class Bucket:
    def __init__(self, per_second: float, burst: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._burst = burst
        self._monotonic = monotonic
        #: Caller → tokens left, and at which time.
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, caller: str) -> None:
        """Take one token, or raise a `Problem` that says when there will be one."""
        self._take(caller, tokens=1)

    def look(self, caller: str) -> None:
        """Raise as `take` would, but take none."""
        self._take(caller, tokens=0)

    def _take(self, caller: str, *, tokens: int) -> None:
        now = self._monotonic()
        level, at = self._levels.pop(caller, (self._burst, now))
        level = min(self._burst, level + (now - at) * self._per_second)
        self._levels[caller] = (level - tokens if level >= 1 else level, now)
        if len(self._levels) > _CALLERS_MAX:
            self._levels.popitem(last=False)
        if level < 1:
            seconds = math.ceil((1 - level) / self._per_second)
            raise Problem(
                429,
                "RateLimited",
                f"Rate limit: {self._per_second:g} requests per second, {self._burst:g} at once.",
                next_step=f"Wait {seconds} s. To enqueue many jobs, send them in one request to /api/v1/jobs/batch.",
                headers={"Retry-After": str(seconds)},
            )
