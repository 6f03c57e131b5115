"""On what terms connections are had, and what becomes of one that is lent to others."""

from __future__ import annotations

import contextlib
import threading
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from faultline.store.connecting import CONNECT_SECONDS, NoConnection
from faultline.store.room import Room
from faultline.store.wires import cut

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

    from faultline.store.deadline import Deadline

#: What the code that asks has borrowed already. For another place in the same room it would wait for itself.
_loan: ContextVar[Loan | None] = ContextVar("loan", default=None)


@dataclass(frozen=True, slots=True)
class Terms:
    """Several pools may share one room."""

    room: Room
    #: How long to wait for a place in the room, where the caller has no deadline. None: as long as it takes.
    room_seconds: float | None = CONNECT_SECONDS
    #: How long a server that cannot be reached is tried again.
    connect_seconds: float = CONNECT_SECONDS
    #: For statements of those who have borrowed a connection meanwhile.
    spare: Room = field(default_factory=lambda: Room(1))

    def seconds(self, deadline: Deadline) -> float | None:
        return self.room_seconds if deadline.left is None else deadline.left

    def room_of_caller(self) -> Room:
        loan = _loan.get()
        return self.spare if loan is not None and loan.room is self.room else self.room


class Loan:
    """One borrowed connection. Its place is given back exactly once: by the borrower, or by whoever calls the loan in.

    Tasks that are started meanwhile inherit it, and may outlive it: then it is of no room any more.
    """

    def __init__(self) -> None:
        self.room: Room | None = None
        self._entered: Room | None = None
        self._changed = threading.Lock()

    def ask(self, room: Room) -> None:
        """Who waits for a place is to get one: what waits for him from here on must not wait behind him."""
        self.room = room

    def begin(self, room: Room) -> None:
        self._entered = room

    def call_in(self, connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
        """Cut the borrower off, who may never come back, and give the place to the next. From any thread."""
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
        # Refused where a generator that nobody has closed is ended in another context.
        with contextlib.suppress(ValueError):
            _loan.reset(token)


@contextlib.contextmanager
def beside(loan: Loan | None) -> Iterator[None]:
    """For another branch of the borrower's: he may wait for it, so it must not wait for what he and his like have."""
    token = _loan.set(loan)
    try:
        yield
    finally:
        _loan.reset(token)


def no_room(room: Room, seconds: float | None) -> NoConnection:
    return NoConnection(f"all {room.size} connections of this program have been in use for {seconds:g} s")
