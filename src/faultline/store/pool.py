"""Connections for several users, opened when needed and kept for the next. Nothing runs in the background.

psycopg's own pools keep threads and tasks at work: the async one can hang `asyncio.run` at its end, and both hide why a
connection cannot be had. What we need is less: a list of idle connections, and a limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.pq import TransactionStatus

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

CONNECT_SECONDS = 10.0
_PAUSE_MIN, _PAUSE_MAX = 0.05, 1.0


class NoConnection(psycopg.OperationalError):
    """No connection could be had in time. Nothing was sent."""


class Pool:
    """For threads. `connect` opens a connection, ready for use."""

    def __init__(
        self, connect: Callable[[], psycopg.Connection], size: int, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._connect = connect
        self._size = size
        self._monotonic = monotonic
        self._room = threading.BoundedSemaphore(size)
        self._idle: list[psycopg.Connection] = []
        self._closed = False

    @contextlib.contextmanager
    def connection(self) -> Iterator[psycopg.Connection]:
        if not self._room.acquire(timeout=CONNECT_SECONDS):
            raise NoConnection(f"all {self._size} connections of this program have been in use for {CONNECT_SECONDS:g} s")
        try:
            connection = self._take()
            try:
                yield connection
            finally:
                if _is_reusable(connection) and not self._closed:
                    self._idle.append(connection)
                else:
                    connection.close()
        finally:
            self._room.release()

    def drop_idle(self) -> None:
        """After one connection was lost: the others are likely to be dead as well."""
        while self._idle:
            with contextlib.suppress(IndexError):
                self._idle.pop().close()

    def close(self) -> None:
        self._closed = True
        self.drop_idle()

    def _take(self) -> psycopg.Connection:
        with contextlib.suppress(IndexError):
            return self._idle.pop()
        patience = _Patience(self._monotonic)
        while True:
            try:
                return self._connect()
            except psycopg.OperationalError as error:
                time.sleep(patience.after(error))


class AsyncPool:
    """For the tasks of one event loop. The twin of `Pool`."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[psycopg.AsyncConnection]],
        size: int,
        monotonic: Callable[[], float] = time.monotonic,
        *,
        seconds: float = CONNECT_SECONDS,
    ) -> None:
        self._seconds = seconds
        self._connect = connect
        self._size = size
        self._monotonic = monotonic
        self._room = asyncio.BoundedSemaphore(size)
        self._idle: list[psycopg.AsyncConnection] = []
        self._closed = False

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[psycopg.AsyncConnection]:
        try:
            async with asyncio.timeout(self._seconds if self._room.locked() else None):
                await self._room.acquire()
        except TimeoutError:
            raise NoConnection(
                f"all {self._size} connections of this program have been in use for {self._seconds:g} s"
            ) from None
        try:
            connection = await self._take()
            try:
                yield connection
            finally:
                if _is_reusable(connection) and not self._closed:
                    self._idle.append(connection)
                else:
                    await connection.close()
        finally:
            self._room.release()

    async def drop_idle(self) -> None:
        while self._idle:
            await self._idle.pop().close()

    async def close(self) -> None:
        self._closed = True
        await self.drop_idle()

    def abandon(self) -> None:
        """Let go of the sockets when the event loop is gone and nothing can be awaited any more."""
        while self._idle:
            closing = self._idle.pop().close()
            with contextlib.suppress(StopIteration):
                closing.send(None)  # it never really waits

    async def _take(self) -> psycopg.AsyncConnection:
        if self._idle:
            return self._idle.pop()
        patience = _Patience(self._monotonic, self._seconds)
        while True:
            try:
                return await self._connect()
            except psycopg.OperationalError as error:
                await asyncio.sleep(patience.after(error))


class _Patience:
    """A server that restarts is waited for; one that does not come back within the time is given up."""

    def __init__(self, monotonic: Callable[[], float], seconds: float = CONNECT_SECONDS) -> None:
        self._monotonic = monotonic
        self._give_up_at = monotonic() + seconds
        self._pause = _PAUSE_MIN

    def after(self, error: psycopg.OperationalError) -> float:
        """How long to wait before the next try. Raises when there is none."""
        if self._monotonic() + self._pause > self._give_up_at:
            raise NoConnection(str(error)) from error
        self._pause = min(self._pause * 2, _PAUSE_MAX)
        return self._pause / 2


def _is_reusable(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    return not connection.closed and connection.info.transaction_status == TransactionStatus.IDLE
