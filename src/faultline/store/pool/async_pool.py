"""A pool: opens connections when needed and keeps them for some seconds. Nothing runs in the background.

psycopg's own pools run threads and tasks: the async one can hang the end of `asyncio.run`, and both hide why they cannot
connect. A list of idle connections and a limit are enough for us.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

import psycopg

from faultline.store.connection.connecting import Patience, too_late
from faultline.store.connection.state import alittle, is_quiet, is_reusable
from faultline.store.pool.fair_semaphore import Room
from faultline.store.pool.idle import Idle
from faultline.store.pool.loans import Loan, Terms, lending, no_room

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from faultline.store.connection.deadline import Deadline


class AsyncPool:
    """For the tasks of one event loop.

    `connect` opens a connection within a deadline, ready for use. `clean` resets one that was lent; None: the reset failed.
    `is_current`: its server is still the one to use.
    """

    def __init__(
        self,
        connect: Callable[[Deadline], Awaitable[psycopg.AsyncConnection]],
        clean: Callable[[psycopg.AsyncConnection], Awaitable[psycopg.AsyncConnection | None]],
        terms: Terms,
        monotonic: Callable[[], float] = time.monotonic,
        is_current: Callable[[psycopg.AsyncConnection], bool] = lambda _: True,
    ) -> None:
        self._connect = connect
        self._clean = clean
        self._terms = terms
        self._monotonic = monotonic
        self._is_current = is_current
        self.idle: Idle[psycopg.AsyncConnection] = Idle(monotonic)
        #: Held by a statement that takes long.
        self.long = asyncio.Semaphore(1)
        self._first = Room(1)
        self._closed = False

    @contextlib.asynccontextmanager
    async def first(self, deadline: Deadline) -> AsyncIterator[None]:
        """Let one caller at a time ask what must be known before the pool opens connections."""
        if not await self._first.aenter(deadline.left):
            raise too_late(deadline)
        try:
            yield
        finally:
            self._first.leave()

    @contextlib.asynccontextmanager
    async def connection(self, deadline: Deadline) -> AsyncIterator[psycopg.AsyncConnection]:
        """A connection for our own statements."""
        async with self._slot(deadline):
            connection = await self._take(deadline)
            try:
                yield connection
            finally:
                await self._put(connection)

    @contextlib.asynccontextmanager
    async def lent(self, deadline: Deadline, loan: Loan) -> AsyncIterator[psycopg.AsyncConnection]:
        """A connection for the user's statements. Afterwards it is reset, or closed after an error."""
        loan.ask(self._terms.room)
        loan.begin(await self._entered(deadline))
        with lending(loan):
            connection = await self._take(deadline)
            try:
                yield connection
            except BaseException:
                await connection.close()  # does not really wait, so no cancellation can hide the error
                raise
            cleaned = await self._clean(connection) if is_reusable(connection) else None
            await self._put(cleaned or connection)

    async def shrink(self) -> None:
        """Close connections that have been idle for some time."""
        for connection in self.idle.take_old():
            await connection.close()

    async def drop_idle(self, *, but_the_living: bool = False) -> None:
        """Close the idle connections after one was lost: the others are probably dead too.

        `but_the_living` keeps those on which the server has reported nothing: a full server would not let us open new ones.
        """
        if but_the_living:
            await alittle()
        for connection in self.idle.take_all():
            if but_the_living and is_quiet(connection):
                self.idle.put(connection)
            else:
                await connection.close()

    async def close(self) -> None:
        self._closed = True
        await self.drop_idle()

    @contextlib.asynccontextmanager
    async def _slot(self, deadline: Deadline) -> AsyncIterator[None]:
        room = await self._entered(deadline)
        try:
            yield
        finally:
            room.leave()

    async def _entered(self, deadline: Deadline) -> Room:
        room, seconds = self._terms.room_of_caller(), self._terms.seconds(deadline)
        if not await room.aenter(seconds):
            raise no_room(room, seconds)
        return room

    async def _take(self, deadline: Deadline) -> psycopg.AsyncConnection:
        patience: Patience | None = None
        while (connection := await self._take_idle()) is None:
            patience = patience or Patience(self._monotonic, deadline.within(self._terms.connect_seconds))
            try:
                return await self._connect(deadline)
            except psycopg.OperationalError as error:
                await patience.apause(error)
        return connection

    async def _take_idle(self) -> psycopg.AsyncConnection | None:
        """Look at the socket first: after a restart or a promotion, connections have ended without being used."""
        while (connection := self.idle.take()) is not None:
            if is_quiet(connection) and self._is_current(connection):
                return connection
            await connection.close()
        return None

    async def _put(self, connection: psycopg.AsyncConnection) -> None:
        if not is_reusable(connection):
            await connection.close()
            return
        self.idle.put(connection)
        await self.shrink()
        if self._closed:  # looked at last: another thread may close it at any moment
            await self.drop_idle()
