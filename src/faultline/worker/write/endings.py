"""How an attempt ended: the executor makes an ending, the completer writes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from faultline.attempt.storable_text import storable
from faultline.core.model import Failure

if TYPE_CHECKING:
    from faultline.worker.lease.held_lease import HeldLease


class TimedOut(TimeoutError):
    """The attempt took longer than the task's timeout."""


# Not frozen, for speed: one is made for every job that runs.
@dataclass(slots=True)
class Completed:
    hold: HeldLease
    result: str  # JSON text


@dataclass(frozen=True, slots=True)
class Failed:
    hold: HeldLease
    failure: Failure
    #: Everything that could be refused was left out.
    plain: bool = False

    @property
    def is_final(self) -> bool:
        return self.failure.then != "retry" or self.hold.lease.attempt >= self.hold.lease.max_attempts


@dataclass(frozen=True, slots=True)
class Released:
    hold: HeldLease
    delay_seconds: float | None = None
    #: The attempt may have completed the job and lost the answer: look before releasing it.
    may_have_ended: bool = False


@dataclass(frozen=True, slots=True)
class Suspended:
    """The job releases its lease and waits. Its attempt is given back."""

    hold: HeldLease
    #: The calls that it waits for, as the text of a JSON array.
    waits: str


@dataclass(frozen=True, slots=True)
class StartedOver:
    """The job begins anew, with new arguments and without its history."""

    hold: HeldLease
    #: The text of a JSON object.
    args: str


Ending = Completed | Failed | Released | Suspended | StartedOver


def unstorable(hold: HeldLease, why: str) -> Failed:
    """Final: the task has done its work. Another attempt would do it again and fail again."""
    return Failed(hold, Failure(unstorable_text(why), then="fail"))


def unstorable_text(why: str) -> str:
    advice = "Return a small JSON value, and keep large or binary results elsewhere"
    # "result of charge cannot be stored as JSON: …" says so itself.
    said = why if why.startswith("result of ") and "cannot be stored" in why else f"its result cannot be stored: {why}"
    return f"{storable(said)}. {advice}"
