"""Gather what is to be sent while a send is under way, and send it together. Nobody waits for a batch to fill.

The first item goes out at once; those that come meanwhile form the next batch. So an idle system answers fast and a busy
one sends few, large statements, without a setting. A sender that is busy anyway rests for a moment between two large
batches: a statement for a thousand jobs costs the database much less than ten for a hundred.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, Generic, TypeVar

from faultline.core import events
from faultline.worker.services import cancel

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")

_LARGE = 100


class Batcher(Generic[T]):
    """One sender for one kind of thing. `send` decides what becomes of each item. If it raises, that is a bug: the batch is
    sent again after a while, since an item that was dropped would be missing for good.
    """

    def __init__(
        self,
        send: Callable[[list[T]], Awaitable[None]],
        *,
        items_max: int = 1000,
        size: Callable[[T], int] = lambda _: 0,
        size_max: int = 4 * 1024 * 1024,
        rest_seconds: float = 0.0,
        again_seconds: float = 1.0,
    ) -> None:
        self._send = send
        self._items_max = items_max
        self._size = size
        self._size_max = size_max
        self._rest_seconds = rest_seconds
        self._again_seconds = again_seconds
        self._waiting: list[T] = []
        self._sending: asyncio.Task[None] | None = None
        self._closed = False

    def put(self, item: T) -> None:
        self._waiting.append(item)
        if self._sending is None:
            self._go_on()

    async def flushed(self) -> None:
        """Return once everything that was put is sent."""
        while (sending := self._go_on()) is not None:
            await asyncio.wait([sending])

    def _go_on(self) -> asyncio.Task[None] | None:
        """A sender is at work while anything waits, also after one that was cancelled before its first step."""
        if self._sending is None and self._waiting and not self._closed:
            self._sending = asyncio.create_task(self._drain())
            self._sending.add_done_callback(self._done)
        return self._sending

    def _done(self, _: asyncio.Task[None]) -> None:
        self._sending = None
        self._go_on()

    async def close(self) -> None:
        """Stop sending. What was not sent is dropped, and so is what comes later."""
        self._closed = True
        self._waiting.clear()
        if self._sending is not None:
            await cancel([self._sending])

    async def _drain(self) -> None:
        while self._waiting:
            batch = self._next_batch()
            try:
                await self._send(batch)
            except Exception as error:  # noqa: BLE001 - see the class
                events.emit("send_failed", items=len(batch), error=repr(error)[:2000])
                self._waiting[:0] = batch
                await asyncio.sleep(self._again_seconds)
            if len(batch) >= _LARGE and len(self._waiting) < self._items_max:
                await asyncio.sleep(self._rest_seconds)

    def _next_batch(self) -> list[T]:
        """As many as may go together, and one that is too large alone."""
        batch = self._waiting[: self._items_max]
        sizes = list(accumulate(map(self._size, batch)))
        if sizes[-1] > self._size_max:
            batch = batch[: max(1, bisect_right(sizes, self._size_max))]
        del self._waiting[: len(batch)]
        return batch
