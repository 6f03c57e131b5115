"""Connections that nobody uses at the moment, kept by a pool for whoever comes next."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

C = TypeVar("C")

#: A connection that was not needed for so long is closed: others may want the server's place.
IDLE_SECONDS = 10.0


class Idle(Generic[C]):
    """Safe for threads. What is taken out is the caller's, to be used or closed."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._changed = threading.Lock()
        self._kept: deque[tuple[float, C]] = deque()

    def put(self, connection: C) -> None:
        with self._changed:
            self._kept.append((self._monotonic(), connection))

    def take(self) -> C | None:
        """The one that was used last, so that the others grow old."""
        with self._changed:
            return self._kept.pop()[1] if self._kept else None

    def take_old(self) -> list[C]:
        """Those that were not needed for a while."""
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
