"""Connections for several users, opened when needed and kept for the next for some seconds. Nothing runs in the background.

psycopg's own pools keep threads and tasks at work: the async one can hang `asyncio.run` at its end, and both hide why a
connection cannot be had. What we need is less: a list of idle connections, and a limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus

from faultline.store.connecting import CONNECT_SECONDS, NoConnection
from faultline.store.room import Room
from faultline.store.wires import cut

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from faultline.store.deadline import BoundedConnection, Deadline

_PAUSE_MIN, _PAUSE_MAX = 0.05, 1.0
#: A connection that was not needed for so long is closed: others may want the server's place.
IDLE_SECONDS = 10.0
#: What the code that asks has borrowed already. For another place in the same room it would wait for itself.
_loan: ContextVar[Loan | None] = ContextVar("loan", default=None)


@dataclass(frozen=True, slots=True)
class Terms:
    """On what terms connections are had. Several pools may share one room."""

    room: Room
    #: How long to wait for a place in the room, where the caller has no deadline. None: as long as it takes.
    room_seconds: float | None = CONNECT_SECONDS
    #: How long a server that cannot be reached is tried again.
    connect_seconds: float = CONNECT_SECONDS
    #: For statements of those who have borrowed a connection meanwhile.
    spare: Room = field(default_factory=lambda: Room(1))

    def seconds(self, deadline: Deadline) -> float | None:
        return self.room_seconds if deadline.left is None else deadline.left

    def place(self) -> Room:
        loan = _loan.get()
        return self.spare if loan is not None and loan.room is self.room else self.room


class Loan:
    """One borrowed connection. Its place is given back exactly once: by the borrower, or by whoever calls the loan in.

    Tasks that are started meanwhile inherit it, and may outlive it: then it is of no room any more.
    """

    def __init__(self) -> None:
        self.room: Room | None = None
        self._place: Room | None = None
        self._changed = threading.Lock()

    def begin(self, room: Room, place: Room) -> None:
        self.room, self._place = room, place

    def call_in(self, connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
        """Cut the borrower off, who may never come back, and give the place to the next. From any thread."""
        cut(connection)
        self.end()

    def end(self) -> None:
        with self._changed:
            place, self._place, self.room = self._place, None, None
        if place is not None:
            place.leave()


class Pool:
    """For threads. `connect` opens a connection within a deadline, ready for use. `clean` takes one that was lent to others
    and answers with one as new, or None if that could not be done.
    """

    def __init__(
        self,
        connect: Callable[[Deadline], BoundedConnection],
        clean: Callable[[BoundedConnection], BoundedConnection | None],
        terms: Terms,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connect = connect
        self._clean = clean
        self._terms = terms
        self._monotonic = monotonic
        self._changed = threading.Lock()
        self._idle: deque[tuple[float, BoundedConnection]] = deque()
        self._closed = False

    @contextlib.contextmanager
    def connection(self, deadline: Deadline) -> Iterator[BoundedConnection]:
        """A connection for statements of our own."""
        with self._place(deadline):
            connection = self._take(deadline)
            try:
                yield connection
            finally:
                self._put(connection)

    @contextlib.contextmanager
    def lent(self, deadline: Deadline, loan: Loan) -> Iterator[BoundedConnection]:
        """A connection for others' statements: it comes back as new, or it is closed, as after an error."""
        loan.begin(self._terms.room, self._entered(deadline))
        with _lending(loan):
            connection = self._take(deadline)
            try:
                yield connection
            except BaseException:
                connection.close()
                raise
            cleaned = self._clean(connection) if is_reusable(connection) else None
            self._put(cleaned or connection)

    def shrink(self) -> None:
        """Close what was not needed for a while."""
        for connection in self._old():
            connection.close()

    def drop_idle(self) -> None:
        """After one connection was lost: the others are likely to be dead as well."""
        with self._changed:
            dropped = list(self._idle)
            self._idle.clear()
        for _, connection in dropped:
            connection.close()

    def close(self) -> None:
        self._closed = True
        self.drop_idle()

    @contextlib.contextmanager
    def _place(self, deadline: Deadline) -> Iterator[None]:
        room = self._entered(deadline)
        try:
            yield
        finally:
            room.leave()

    def _entered(self, deadline: Deadline) -> Room:
        room, seconds = self._terms.place(), self._terms.seconds(deadline)
        if not room.enter(seconds):
            raise _no_room(room, seconds)
        return room

    def _take(self, deadline: Deadline) -> BoundedConnection:
        patience = _Patience(self._monotonic, deadline.within(self._terms.connect_seconds))
        while True:
            with self._changed:
                if self._idle:
                    return self._idle.pop()[1]
            try:
                return self._connect(deadline)
            except psycopg.OperationalError as error:
                time.sleep(patience.after(error))

    def _put(self, connection: BoundedConnection) -> None:
        if self._closed or not is_reusable(connection):
            connection.close()
            return
        with self._changed:
            self._idle.append((self._monotonic(), connection))
        self.shrink()

    def _old(self) -> list[BoundedConnection]:
        with self._changed:
            return _taken_out(self._idle, self._monotonic() - IDLE_SECONDS)


class AsyncPool:
    """For the tasks of one event loop. The twin of `Pool`."""

    def __init__(
        self,
        connect: Callable[[Deadline], Awaitable[psycopg.AsyncConnection]],
        clean: Callable[[psycopg.AsyncConnection], Awaitable[psycopg.AsyncConnection | None]],
        terms: Terms,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connect = connect
        self._clean = clean
        self._terms = terms
        self._monotonic = monotonic
        #: For statements that take long.
        self.long = asyncio.Semaphore(1)
        self._idle: deque[tuple[float, psycopg.AsyncConnection]] = deque()
        self._closed = False

    @contextlib.asynccontextmanager
    async def connection(self, deadline: Deadline) -> AsyncIterator[psycopg.AsyncConnection]:
        async with self._place(deadline):
            connection = await self._take(deadline)
            try:
                yield connection
            finally:
                await self._put(connection)

    @contextlib.asynccontextmanager
    async def lent(self, deadline: Deadline, loan: Loan) -> AsyncIterator[psycopg.AsyncConnection]:
        loan.begin(self._terms.room, await self._entered(deadline))
        with _lending(loan):
            connection = await self._take(deadline)
            try:
                yield connection
            except BaseException:
                await connection.close()  # which never really waits: a cancellation would hide the error
                raise
            cleaned = await self._clean(connection) if is_reusable(connection) else None
            await self._put(cleaned or connection)

    async def shrink(self) -> None:
        for connection in _taken_out(self._idle, self._monotonic() - IDLE_SECONDS):
            await connection.close()

    async def drop_idle(self) -> None:
        while self._idle:
            await self._idle.pop()[1].close()

    async def close(self) -> None:
        self._closed = True
        await self.drop_idle()

    def abandon(self) -> None:
        """Let go of the sockets when the event loop is gone and nothing can be awaited any more."""
        while self._idle:
            closing = self._idle.pop()[1].close()
            with contextlib.suppress(StopIteration):
                closing.send(None)  # it never really waits

    @contextlib.asynccontextmanager
    async def _place(self, deadline: Deadline) -> AsyncIterator[None]:
        room = await self._entered(deadline)
        try:
            yield
        finally:
            room.leave()

    async def _entered(self, deadline: Deadline) -> Room:
        room, seconds = self._terms.place(), self._terms.seconds(deadline)
        if not await room.aenter(seconds):
            raise _no_room(room, seconds)
        return room

    async def _take(self, deadline: Deadline) -> psycopg.AsyncConnection:
        patience = _Patience(self._monotonic, deadline.within(self._terms.connect_seconds))
        while True:
            if self._idle:
                return self._idle.pop()[1]
            try:
                return await self._connect(deadline)
            except psycopg.OperationalError as error:
                await asyncio.sleep(patience.after(error))

    async def _put(self, connection: psycopg.AsyncConnection) -> None:
        if self._closed or not is_reusable(connection):
            await connection.close()
            return
        self._idle.append((self._monotonic(), connection))
        await self.shrink()


class _Patience:
    """A server that restarts is waited for; one that does not come back within the time is given up."""

    def __init__(self, monotonic: Callable[[], float], deadline: Deadline) -> None:
        self._monotonic = monotonic
        self._give_up_at = monotonic() + (deadline.left or 0.0)
        self._pause = _PAUSE_MIN

    def after(self, error: psycopg.OperationalError) -> float:
        """How long to wait before the next try. Raises when there is none."""
        if self._monotonic() + self._pause > self._give_up_at:
            raise NoConnection(str(error)) from error
        self._pause = min(self._pause * 2, _PAUSE_MAX)
        return self._pause / 2


@contextlib.contextmanager
def _lending(loan: Loan) -> Iterator[None]:
    token = _loan.set(loan)
    try:
        yield
    finally:
        loan.end()
        # Refused where a generator that nobody has closed is ended in another context.
        with contextlib.suppress(ValueError):
            _loan.reset(token)


def _taken_out(idle: deque[tuple[float, Any]], before: float) -> list[Any]:
    old = []
    while idle and idle[0][0] < before:
        old.append(idle.popleft()[1])
    return old


def _no_room(room: Room, seconds: float | None) -> NoConnection:
    return NoConnection(f"all {room.size} connections of this program were in use for {seconds:g} s")


def is_reusable(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    if connection.closed or connection.info.transaction_status != TransactionStatus.IDLE:
        return False
    wire = getattr(connection, "pgconn", None)  # a simulated connection has none
    return wire is None or wire.pipeline_status == PipelineStatus.OFF
