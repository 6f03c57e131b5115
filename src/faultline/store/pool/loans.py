"""The limits of a pool, and loans: connections that user code borrows from it."""

from __future__ import annotations

import contextlib
import threading
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from faultline.store.connection.connecting import CONNECT_SECONDS, NoConnection
from faultline.store.connection.state import cut
from faultline.store.pool.fair_semaphore import Room

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

    from faultline.store.connection.deadline import Deadline

#: What the running code has borrowed. If it asked for a second connection of the same room, it could wait for itself.
_loan: ContextVar[Loan | None] = ContextVar("loan", default=None)


@dataclass(frozen=True, slots=True)
class Terms:
    """Several pools may share one room."""

    room: Room
    #: How long to wait for the room if the caller has no deadline. None: no limit.
    room_seconds: float | None = CONNECT_SECONDS
    #: How long to retry a server that cannot be reached.
    connect_seconds: float = CONNECT_SECONDS
    #: For statements of code that has borrowed a connection.
    spare: Room = field(default_factory=lambda: Room(1))

    def seconds(self, deadline: Deadline) -> float | None:
        return self.room_seconds if deadline.left is None else deadline.left

    def room_of_caller(self) -> Room:
        loan = _loan.get()
        return self.spare if loan is not None and loan.room is self.room else self.room


class Loan:
    """One borrowed connection. Either its borrower or `call_in` leaves the room, exactly once.

    Tasks that the borrower starts inherit the loan and may outlive it: an ended loan has no room.
    """

    def __init__(self) -> None:
        self.room: Room | None = None
        self._entered: Room | None = None
        self._changed = threading.Lock()

    def ask(self, room: Room) -> None:
        """Set the room before waiting for it: what the borrower waits for must not queue behind the borrower."""
        self.room = room

    def begin(self, room: Room) -> None:
        self._entered = room

    def call_in(self, connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
        """Cut the connection of a borrower that may never return, and leave the room. Any thread may call it."""
        cut(connection)
        self.end()

    def end(self) -> None:
        with self._changed:
            entered, self._entered, self.room = self._entered, None, None
        if entered is not None:
            entered.leave()


@contextlib.contextmanager
def lending(loan: Loan) -> Iterator[None]:
    token = _loan.set(loan)
    try:
        yield
    finally:
        loan.end()
        # Raised when the garbage collector ends an unclosed generator in another context.
        with contextlib.suppress(ValueError):
            _loan.reset(token)


@contextlib.contextmanager
def beside(loan: Loan | None) -> Iterator[None]:
    """Run another task of the borrower under its loan. The borrower may wait for it, so it must not wait for the room."""
    token = _loan.set(loan)
    try:
        yield
    finally:
        _loan.reset(token)


def no_room(room: Room, seconds: float | None) -> NoConnection:
    return NoConnection(f"all {room.size} connections of this program have been in use for {seconds:g} s")
