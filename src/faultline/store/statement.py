"""One round trip to the database as a value: what to send and how to read the answer. Uses no connection.

Blocking, async and simulated databases run the same statements, and so does a caller's own connection.
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
    """One round trip. `repeatable`: sent twice, it has the same effect as once, so a lost answer can be asked for again."""

    name: str
    sql: str
    params: tuple[Any, ...]
    read: Callable[[Rows], T]
    repeatable: bool = False
    reads: bool = False  # it writes nothing: after a lost answer, nothing is unknown
    #: Ask for a binary answer: cheaper for the server to write and for us to read, if it is large.
    binary: bool = False
    #: Sent often: a session that is ours alone prepares it.
    often: bool = False
    #: Other parameters for when it is sent again.
    params_again: tuple[Any, ...] | None = None
    #: Called for the parameters at each send: a decision from before an outage must not be used after it.
    params_now: Callable[[], tuple[Any, ...]] | None = None
    #: A longer time limit, for statements that read many rows.
    seconds: float = 0.0

    def limit(self, answer_seconds: float | None) -> float | None:
        return answer_seconds if answer_seconds is None else max(answer_seconds, self.seconds)
