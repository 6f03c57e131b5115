"""The idle connections of a pool, kept for the next user."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

C = TypeVar("C")

#: A connection that was idle for so long is closed: other programs may need the server's slot.
IDLE_SECONDS = 10.0


class Idle(Generic[C]):
    """Thread-safe. The caller uses or closes what it takes."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._changed = threading.Lock()
        self._kept: deque[tuple[float, C]] = deque()

    def put(self, connection: C) -> None:
        with self._changed:
            self._kept.append((self._monotonic(), connection))

    def take(self) -> C | None:
        """Take the one that was used last, so that the others become old."""
        with self._changed:
            return self._kept.pop()[1] if self._kept else None

    def take_old(self) -> list[C]:
        """Take those that were idle for `IDLE_SECONDS`."""
        before = self._monotonic() - IDLE_SECONDS
        old = []
        with self._changed:
            while self._kept and self._kept[0][0] < before:
                old.append(self._kept.popleft()[1])
        return old

    def take_all(self) -> list[C]:
        with self._changed:
            kept, self._kept = self._kept, deque()
        return [connection for _, connection in kept]
