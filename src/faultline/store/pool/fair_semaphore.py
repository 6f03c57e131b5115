"""A fair semaphore with a timeout: threads and the tasks of event loops wait in one line."""

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


#: A wait of this length is reported, for all who wait together, and again after the second time.
LONG_SECONDS, _REPORT_SECONDS = 10.0, 60.0


class Room:
    """Lets `size` callers in. `report` is called during a long wait, with the size and the number of those who wait."""

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
        """Wait this long to get in; None: no limit. Returns whether we are in, until `leave`."""
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
                # `wait` does not cancel the future with us: our turn may have come, and `_give_up` must see that.
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
        """Whose turn it is. A future that was cancelled has given up."""
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
    """A long wait in parts, so that it can be reported between them."""
    while seconds is None or seconds > LONG_SECONDS:
        yield LONG_SECONDS
        if seconds is not None:
            seconds -= LONG_SECONDS
    yield seconds
