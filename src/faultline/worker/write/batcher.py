"""Send items in batches. No item waits for a batch to fill, unless it is one that can wait for a moment.

The first item is sent at once; items that arrive meanwhile form the next batch. So an idle system answers fast and a busy
one sends few, large statements. Between two large batches the sender rests for a moment: one statement for a thousand jobs
costs the database much less than ten for a hundred.

Items that can wait are sent so long after the last batch, or together with the next item that cannot wait.
"""

from __future__ import annotations

import asyncio
import math
from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, Generic, TypeVar

from faultline.core import events
from faultline.worker.base.background_tasks import cancel

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")

_LARGE = 100


class Batcher(Generic[T]):
    """One sender for one kind of item. `send` deals with errors itself. If it raises, that is a bug: the batch is sent again
    later, because a dropped item would be lost.
    """

    def __init__(
        self,
        send: Callable[[list[T]], Awaitable[None]],
        *,
        items_max: int = 1000,
        size: Callable[[T], int] = lambda _: 0,
        size_max: int = 4 * 1024 * 1024,
        rest_seconds: float = 0.0,
        gather_seconds: float = 0.0,
        again_seconds: float = 1.0,
    ) -> None:
        self._send = send
        self._items_max = items_max
        self._size = size
        self._size_max = size_max
        self._rest_seconds = rest_seconds
        self._gather_seconds = gather_seconds
        self._again_seconds = again_seconds
        self._waiting: list[T] = []
        self._sending: asyncio.Task[None] | None = None
        #: How many of those that wait can wait longer.
        self._patient = 0
        self._sent_at = -math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def put(self, item: T) -> None:
        self._waiting.append(item)
        if self._sending is None:
            self._go_on()

    def put_patiently(self, item: T) -> None:
        """One that can wait for others."""
        self._patient += 1
        self.put(item)

    async def flushed(self) -> None:
        """Send everything now, and wait until it is sent."""
        self._patient = 0
        while (sending := self._go_on()) is not None:
            await asyncio.wait([sending])
            self._patient = 0

    def _go_on(self) -> asyncio.Task[None] | None:
        """Start a sender if items are due. The last one may have been cancelled before its first step."""
        if self._sending is None and not self._closed and self._are_due():
            self._sending = asyncio.create_task(self._drain())
            self._sending.add_done_callback(self._done)
        return self._sending

    def _are_due(self) -> bool:
        """If not yet, a timer starts the sender."""
        if not self._waiting:
            return False
        if len(self._waiting) > self._patient or len(self._waiting) >= _LARGE:
            return True
        loop = asyncio.get_running_loop()
        due_at = self._sent_at + self._gather_seconds
        if loop.time() >= due_at:
            return True
        if self._timer is None:
            self._timer = loop.call_at(due_at, self._hurry)
        return False

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _hurry(self) -> None:
        self._timer = None
        self._patient = 0
        self._go_on()

    def _done(self, _: asyncio.Task[None]) -> None:
        self._sending = None
        self._go_on()

    async def close(self) -> None:
        """Stop sending, and drop what was not sent and what comes later."""
        self._closed = True
        self._waiting.clear()
        self._stop_timer()
        if self._sending is not None:
            await cancel([self._sending])

    async def _drain(self) -> None:
        while self._are_due():
            batch = self._next_batch()
            self._patient = 0  # what did not fit is sent next
            self._sent_at = asyncio.get_running_loop().time()
            self._stop_timer()
            try:
                await self._send(batch)
            except Exception as error:  # noqa: BLE001 - see the class
                events.emit("send_failed", items=len(batch), error=repr(error)[:2000])
                self._waiting[:0] = batch
                self._patient = 0
                await asyncio.sleep(self._again_seconds)
            if len(batch) >= _LARGE and len(self._waiting) < self._items_max:
                await asyncio.sleep(self._rest_seconds)

    def _next_batch(self) -> list[T]:
        """As many items as fit; an item that is too large goes alone."""
        batch = self._waiting[: self._items_max]
        sizes = list(accumulate(map(self._size, batch)))
        if sizes[-1] > self._size_max:
            batch = batch[: max(1, bisect_right(sizes, self._size_max))]
        del self._waiting[: len(batch)]
        return batch
