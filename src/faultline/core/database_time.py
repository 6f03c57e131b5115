"""The database's time, carried on between two readings by the clocks of this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

#: A steady clock may go wrong by 500 parts in a million: after so long, by a third of a second.
READ_SECONDS = 600.0
#: A machine that slept, or whose time of day was set, is seen by its two clocks: they went on for different times.
_APART_SECONDS = 1.0


class DatabaseTime:
    """`seconds` answers at once. `is_doubtful` tells when the database should be asked before: `set` takes its answer."""

    def __init__(self, monotonic: Callable[[], float], day: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._day = day
        #: What the steady clock and the time of day are behind the database's. None: it was never read.
        self._behind: tuple[float, float] | None = None
        self._read_again_at = 0.0

    def set(self, clock: datetime) -> None:
        """Called as soon as the answer is there: what passes until then is missing from all later times."""
        now = self._monotonic()
        self._behind = (clock.timestamp() - now, clock.timestamp() - self._day())
        self._read_again_at = now + READ_SECONDS

    def seconds(self) -> float:
        if self._behind is None:
            raise AssertionError("the database's time was never read")
        return self._monotonic() + self._behind[0]

    def is_doubtful(self) -> bool:
        """Whether it was never read, or not for long, or this machine was asleep. Of an old one, one caller is told."""
        if self._behind is None:
            return True
        now = self._monotonic()
        if abs((now + self._behind[0]) - (self._day() + self._behind[1])) > _APART_SECONDS:
            return True
        if now < self._read_again_at:
            return False
        # The others need not wait for the answer: it is nearly right.
        self._read_again_at = now + READ_SECONDS
        return True
