"""Which pool a call uses: in blocking programs there is one, in async ones each event loop has its own.

An async connection belongs to the loop that opened it.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

from faultline.store.connection.state import abandon

if TYPE_CHECKING:
    from collections.abc import Callable

    from faultline.store.pool.async_pool import AsyncPool
    from faultline.store.pool.pool import Pool


class AsyncPools:
    """`make` makes the pool of a loop when that is first asked for."""

    def __init__(self, make: Callable[[], AsyncPool]) -> None:
        self._make = make
        #: Threads may run a loop each. Nothing is awaited meanwhile.
        self._changed = threading.Lock()
        self._pools: dict[asyncio.AbstractEventLoop, AsyncPool] = {}

    def opened(self) -> AsyncPool:
        loop = asyncio.get_running_loop()
        with self._changed:
            pool = self._pools.get(loop)
            if pool is None:
                self._forget_closed_loops()
                self._pools[loop] = pool = self._make()
            return pool

    def existing(self) -> AsyncPool | None:
        with self._changed:
            return self._pools.get(asyncio.get_running_loop())

    def take_out(self) -> AsyncPool | None:
        """Whoever asks next gets a new one."""
        with self._changed:
            self._forget_closed_loops()
            return self._pools.pop(asyncio.get_running_loop(), None)

    def _forget_closed_loops(self) -> None:
        """`asyncio.run` once per call is common, and each run would leave its connections behind."""
        for closed in [loop for loop in self._pools if loop.is_closed()]:
            for connection in self._pools.pop(closed).idle.take_all():
                abandon(connection)


class Pools:
    """The twin of `AsyncPools` for threads, which share one pool."""

    def __init__(self, make: Callable[[], Pool]) -> None:
        self._make = make
        self._changed = threading.Lock()
        self._pool: Pool | None = None

    def opened(self) -> Pool:
        with self._changed:
            if self._pool is None:
                self._pool = self._make()
            return self._pool

    def existing(self) -> Pool | None:
        return self._pool

    def take_out(self) -> Pool | None:
        with self._changed:
            pool, self._pool = self._pool, None
        return pool
