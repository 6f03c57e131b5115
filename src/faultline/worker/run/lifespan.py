"""What the jobs of a worker share: opened before the first job, closed after the last.

All lifespans of a program live in one asyncio task: many libraries want to be closed by the task that opened them. A
blocking one lives in a thread of its own, so that loading a model does not block the event loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from faultline.core import events
from faultline.core.errors import ConfigError
from faultline.worker.base.threads import Threads

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from faultline.app.hooks import Lifespan

#: How long closing may take. Then the worker ends without it.
CLOSE_SECONDS = 10.0


class StoppedEarly(Exception):
    """The worker was asked to stop while its lifespans were opening."""


class Lifespans:
    """`on_end`: called if they end while the worker needs them, by a task that cancels everything."""

    def __init__(self, lifespans: Sequence[Lifespan], worker: str, on_end: Callable[[str], None]) -> None:
        self._lifespans = lifespans
        self._worker = worker
        self._on_end = on_end
        #: What they have yielded.
        self.state: dict[str, Any] = {}
        self._closing = asyncio.Event()
        self._living: asyncio.Task[None] | None = None
        self._threads = Threads()

    async def open(self, stopped: asyncio.Event) -> None:
        """Raises what a lifespan raises, and `StoppedEarly`."""
        if not self._lifespans:
            return
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        living, stop = asyncio.create_task(self._live(opened)), asyncio.create_task(stopped.wait())
        either: list[asyncio.Future[Any]] = [living, opened, stop]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop.cancel()
            if not opened.done() and not living.done():
                await self._end(living)
        if not opened.done():
            if living.done() and not living.cancelled():
                living.result()
            raise StoppedEarly
        self._living = living
        living.add_done_callback(self._ended)

    async def close(self) -> None:
        """Never raises: the jobs have ended, and so does the worker."""
        living, self._living = self._living, None
        if living is None:
            return
        self._closing.set()
        await asyncio.wait([living], timeout=CLOSE_SECONDS)
        if not living.done():
            self._failed(f"closing took longer than {CLOSE_SECONDS:g} s")
            await self._end(living)
        elif not living.cancelled() and (error := living.exception()) is not None:
            self._failed(f"closing failed: {type(error).__name__}: {error}")
        self._threads.close()

    async def _live(self, opened: asyncio.Future[None]) -> None:
        async with AsyncExitStack() as stack:
            for one in self._lifespans:
                given = await stack.enter_async_context(one.opened() if one.is_async else self._in_thread(one))
                self._take(one.name, given)
            if not opened.done():
                opened.set_result(None)
            await self._closing.wait()

    def _take(self, name: str, given: object) -> None:
        if given is None:
            return
        if not isinstance(given, Mapping):
            raise ConfigError(f"lifespan {name} yields {type(given).__name__}; yield a dict, which becomes the jobs' state")
        twice = sorted(map(str, self.state.keys() & given.keys()))
        if twice:
            raise ConfigError(f"lifespan {name} yields {', '.join(twice)}, which another lifespan yields; rename one")
        self.state.update(given)

    @asynccontextmanager
    async def _in_thread(self, lifespan: Lifespan) -> AsyncIterator[Any]:
        """Opened, kept and closed by one thread."""
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[Any] = loop.create_future()
        over = threading.Event()

        def take(given: object) -> None:
            if not opened.done():
                opened.set_result(given)

        def live() -> None:
            with lifespan.opened() as given:
                loop.call_soon_threadsafe(take, given)
                over.wait()

        living = self._threads.run(live)
        try:
            await asyncio.wait([opened, living], return_when=asyncio.FIRST_COMPLETED)
            if living.done():
                living.result()
                raise ConfigError(f"lifespan {lifespan.name} did not yield")
            yield opened.result()
        finally:
            over.set()
            if not living.done():
                await asyncio.wait([living])
        living.result()

    def _ended(self, living: asyncio.Task[None]) -> None:
        if self._living is living:
            error = None if living.cancelled() else living.exception()
            self._failed("it was cancelled" if error is None else f"{type(error).__name__}: {error}")
            self._on_end("its lifespan has ended")

    def _failed(self, error: str) -> None:
        events.emit("lifespan_failed", worker=self._worker, error=error[:2000])

    async def _end(self, living: asyncio.Task[None]) -> None:
        living.cancel()
        await asyncio.wait([living], timeout=1.0)
        if living.done() and not living.cancelled():
            living.exception()  # read, so that asyncio does not warn about it
