"""How an attempt ended: what the executor makes of it and the completer writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from faultline.app.texts import storable
from faultline.core.model import Failure

if TYPE_CHECKING:
    from faultline.worker.hold import Hold


# Not frozen: one is made for every job that runs.
@dataclass(slots=True)
class Completed:
    hold: Hold
    result: str  # JSON text


@dataclass(frozen=True, slots=True)
class Failed:
    hold: Hold
    failure: Failure
    #: It holds nothing any more that could be refused.
    plain: bool = False

    @property
    def is_final(self) -> bool:
        return self.failure.then != "retry" or self.hold.lease.attempt >= self.hold.lease.max_attempts


@dataclass(frozen=True, slots=True)
class Released:
    hold: Hold
    delay_seconds: float | None = None
    #: The attempt may have completed the job without hearing of it: look before giving it back.
    may_have_ended: bool = False


Ending = Completed | Failed | Released


def unstorable(hold: Hold, why: str) -> Failed:
    """For good: the task has done its work, and run again it would do it again and come to the same end."""
    advice = "Return a small JSON value, and keep large or binary results elsewhere"
    return Failed(hold, Failure(f"its result cannot be stored: {storable(why)}. {advice}", then="fail"))
