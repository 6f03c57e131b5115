"""What went wrong with a batch of endings, and whether to go on sending it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from faultline.core import events
from faultline.core.errors import DatabaseUnavailable, FaultlineError, OutcomeUnknown
from faultline.core.pause import Pause
from faultline.store.translation import is_ours_to_mend

if TYPE_CHECKING:
    from collections.abc import Sized

_PAUSE_MIN, _PAUSE_MAX = 0.05, 2.0
_PART_PAUSE_MAX = 15.0
#: After so many refusals, send a batch in parts.
_REFUSALS_MAX = 4
#: After so many errors of this program, give up an ending that is sent alone: within seconds.
_FAULTS_MAX = 8
_LOG_SECONDS = 60.0
_LOCK_NOT_AVAILABLE = "55P03"
_ERROR_LENGTH_MAX = 2000


def said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:_ERROR_LENGTH_MAX]


class Failing:
    """What went wrong with one batch so far. Logged at once, and then rarely: an outage may last for hours."""

    def __init__(self, *, apart: bool = False, unanswered: bool = False) -> None:
        #: Part of a batch that was refused repeatedly.
        self.apart = apart
        #: An answer was lost: the endings may have been written.
        self.unanswered = unanswered
        self._times = self._refusals = 0
        #: How many of its errors were faults of this program.
        self._faults = 0
        self._since = self._log_at = 0.0
        self.pause = Pause(_PAUSE_MIN, _PART_PAUSE_MAX if apart else _PAUSE_MAX)

    @property
    def persists(self) -> bool:
        return self._refusals >= (1 if self.apart else _REFUSALS_MAX)

    @property
    def is_hopeless(self) -> bool:
        """No waiting mends a fault of this program."""
        return self._faults >= _FAULTS_MAX

    def meet(self, error: Exception, endings: Sized) -> None:
        now = asyncio.get_running_loop().time()
        self._times += 1
        self._since = self._since or now
        self.unanswered = self.unanswered or not _wrote_nothing(error)
        # A locked table or an unreachable server affects every part of the batch alike.
        locked = getattr(error, "sqlstate", None) == _LOCK_NOT_AVAILABLE
        self._refusals += not locked and not isinstance(error, DatabaseUnavailable | OutcomeUnknown)
        self._faults += is_ours_to_mend(error)
        if now >= self._log_at:
            self._log_at = now + _LOG_SECONDS
            events.emit(
                "completion_delayed",
                jobs=len(endings),
                times=self._times,
                error=said(error),
            )

    def is_over(self) -> None:
        if self._times:
            seconds = asyncio.get_running_loop().time() - self._since
            events.emit("completion_resumed", times=self._times, seconds=round(seconds, 3))


def _wrote_nothing(error: Exception) -> bool:
    """The server refused, or was not reached: nothing was committed."""
    if isinstance(error, OutcomeUnknown):
        return False
    return isinstance(error, FaultlineError) or bool(getattr(error, "sqlstate", None))
