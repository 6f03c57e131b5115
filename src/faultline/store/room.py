"""Places for so many, first come, first served. Threads and the tasks of an event loop wait in one line."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from concurrent.futures import Future
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


#: Who has waited for so long is told of, and again after so long; not each of them, but all at once.
LONG_SECONDS, _REPORT_SECONDS = 10.0, 60.0


class Room:
    """`report` is called while somebody waits long: with the number of places, and of those who wait."""

    def __init__(
        self,
        size: int,
        report: Callable[[int, int], None] | None = None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.size = size
        self._report = report
        self._monotonic = monotonic
        self._report_at = -inf
        self._free = size
        self._changed = threading.Lock()
        self._waiting: deque[Future[None]] = deque()

    def enter(self, seconds: float | None) -> bool:
        """Wait for a place, so long. None: as long as it takes. True: it is ours until `leave`."""
        waiting = self._queue_up()
        if waiting is None:
            return True
        try:
            for part in _parts(seconds):
                with contextlib.suppress(TimeoutError):
                    waiting.result(part)
                    return True
                self._waits_long(part)
        except BaseException:
            self._give_up(waiting)
            raise
        return self._came_all_the_same(waiting)

    async def aenter(self, seconds: float | None) -> bool:
        waiting = self._queue_up()
        if waiting is None:
            return True
        try:
            comes = asyncio.wrap_future(waiting)
            for part in _parts(seconds):
                # Not cancelled with us: whether the place has come all the same is to be seen.
                if (await asyncio.wait([comes], timeout=part))[0]:
                    return True
                self._waits_long(part)
        except BaseException:  # being cancelled counts
            self._give_up(waiting)
            raise
        return self._came_all_the_same(waiting)

    def leave(self) -> None:
        first = self._first()
        if first is not None:
            first.set_result(None)

    def _waits_long(self, seconds: float) -> None:
        if self._report is None or seconds < LONG_SECONDS:
            return
        now = self._monotonic()
        with self._changed:
            waiting = sum(not one.done() for one in self._waiting)
            if now < self._report_at or not waiting:
                return
            self._report_at = now + _REPORT_SECONDS
        self._report(self.size, waiting)

    def _first(self) -> Future[None] | None:
        """Whose turn it is. One that has given up cannot be started any more."""
        with self._changed:
            while self._waiting:
                first = self._waiting.popleft()
                if first.set_running_or_notify_cancel():
                    return first
            self._free += 1
            return None

    def _queue_up(self) -> Future[None] | None:
        with self._changed:
            if self._free:
                self._free -= 1
                return None
            waiting: Future[None] = Future()
            self._waiting.append(waiting)
            return waiting

    def _came_all_the_same(self, waiting: Future[None]) -> bool:
        return not waiting.cancel()

    def _give_up(self, waiting: Future[None]) -> None:
        if not waiting.cancel():
            self.leave()


def _parts(seconds: float | None) -> Iterator[float]:
    """A long wait in parts, so that it can be told of meanwhile."""
    while seconds is None or seconds > LONG_SECONDS:
        yield LONG_SECONDS
        if seconds is not None:
            seconds -= LONG_SECONDS
    yield seconds
