"""One round trip to the database as a value: what to send and how to read the answer. No connection is used here.

Blocking and async databases run the same statement, a caller's own connection can run it, and a simulated database can too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
Rows = list[tuple[Any, ...]]

UPKEEP_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Statement(Generic[T]):
    """One round trip. `repeatable`: sent twice it has the effect of being sent once, so a lost answer can be asked for."""

    name: str
    sql: str
    params: tuple[Any, ...]
    read: Callable[[Rows], T]
    repeatable: bool = False
    reads: bool = False  # it changes nothing: a lost answer leaves no doubt about that
    #: Ask for the answer in the server's own form: cheaper to write there and to read here, where there is much of it.
    binary: bool = False
    #: Sent again and again: a session that is ours alone parses and plans it once.
    often: bool = False
    #: What to send when it is sent again, if that differs.
    params_again: tuple[Any, ...] | None = None
    #: Decides at the moment of each send what to send: what was decided before an outage must not be used after it.
    params_now: Callable[[], tuple[Any, ...]] | None = None
    #: It may take this long where others are given up earlier: it looks at many rows.
    seconds: float = 0.0

    def limit(self, answer_seconds: float | None) -> float | None:
        return answer_seconds if answer_seconds is None else max(answer_seconds, self.seconds)
