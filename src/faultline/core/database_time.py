"""The database's time: read now and then, and computed from the clocks of this machine in between."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

#: A monotonic clock may drift by 500 parts per million: a third of a second in this time.
READ_SECONDS = 600.0
#: If the two clocks of this machine differ by more, it has slept, or its time of day was set.
_APART_SECONDS = 1.0


class DatabaseTime:
    """Call `seconds` for the time. If `is_doubtful`, read the database's clock first and pass it to `set`."""

    def __init__(self, monotonic: Callable[[], float], day: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._day = day
        #: How far the monotonic clock and the time of day are behind the database's. None: never read.
        self._behind: tuple[float, float] | None = None
        self._read_again_at = 0.0

    def set(self, clock: datetime) -> None:
        """Call it as soon as the answer arrives: a delay would make all later times too early."""
        now = self._monotonic()
        self._behind = (clock.timestamp() - now, clock.timestamp() - self._day())
        self._read_again_at = now + READ_SECONDS

    def seconds(self) -> float:
        if self._behind is None:
            raise AssertionError("the database's time was never read")
        return self._monotonic() + self._behind[0]

    def is_doubtful(self) -> bool:
        """Whether it was never read, or not for long, or this machine was asleep. If it is old, one caller gets True."""
        if self._behind is None:
            return True
        now = self._monotonic()
        if abs((now + self._behind[0]) - (self._day() + self._behind[1])) > _APART_SECONDS:
            return True
        if now < self._read_again_at:
            return False
        # Other callers need not wait: the old time is nearly right.
        self._read_again_at = now + READ_SECONDS
        return True
