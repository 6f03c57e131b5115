"""Gather what is to be sent while a send is under way, and send it together. Nobody waits for a batch to fill.

The first item goes out at once; those that come meanwhile form the next batch. So an idle system answers fast and a busy
one sends few, large statements, without a setting. A sender that is busy anyway rests for a moment between two large
batches: a statement for a thousand jobs costs the database much less than ten for a hundred.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")

_LARGE = 100


class Batcher(Generic[T]):
    """One sender for one kind of thing. `send` must not raise: it has to do something sensible with every item."""

    def __init__(
        self,
        send: Callable[[list[T]], Awaitable[None]],
        *,
        items_max: int = 1000,
        size: Callable[[T], int] = lambda _: 0,
        size_max: int = 4 * 1024 * 1024,
        rest_seconds: float = 0.0,
    ) -> None:
        self._send = send
        self._items_max = items_max
        self._size = size
        self._size_max = size_max
        self._rest_seconds = rest_seconds
        self._waiting: deque[T] = deque()
        self._sending: asyncio.Task[None] | None = None

    def put(self, item: T) -> None:
        self._waiting.append(item)
        if self._sending is None:
            self._sending = asyncio.create_task(self._drain())

    async def flushed(self) -> None:
        """Return once everything that was put is sent."""
        while self._sending is not None:
            await asyncio.wait([self._sending])

    async def _drain(self) -> None:
        try:
            while self._waiting:
                batch = self._next_batch()
                await self._send(batch)
                if len(batch) >= _LARGE and len(self._waiting) < self._items_max:
                    await asyncio.sleep(self._rest_seconds)
        finally:
            self._sending = None
            if self._waiting:
                self._sending = asyncio.create_task(self._drain())

    def _next_batch(self) -> list[T]:
        batch = [self._waiting.popleft()]
        size = self._size(batch[0])
        while self._waiting and len(batch) < self._items_max:
            size += self._size(self._waiting[0])
            if size > self._size_max:
                break
            batch.append(self._waiting.popleft())
        return batch
