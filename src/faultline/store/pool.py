# Generated from src/faultline/store/async_pool.py by `make generate`: change that file, not this one.
"""Connections for several users, opened when needed and kept for the next for some seconds. Nothing runs in the background.

psycopg's own pools keep threads and tasks at work: the async one can hang `asyncio.run` at its end, and both hide why a
connection cannot be had. What we need is less: a list of idle connections, and a limit.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

import psycopg

from faultline.store.connecting import Patience, too_late
from faultline.store.idle import Idle
from faultline.store.lending import Loan, Terms, lending, no_room
from faultline.store.room import Room
from faultline.store.wires import is_quiet, is_reusable, little

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from faultline.store.deadline import Deadline


class Pool:
    """For threads.

    `connect` opens a connection within a deadline, ready for use. `clean` takes one that was lent to others and answers
    with one as new, or None if that could not be done.
    """

    def __init__(
        self,
        connect: Callable[[Deadline], psycopg.Connection],
        clean: Callable[[psycopg.Connection], psycopg.Connection | None],
        terms: Terms,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connect = connect
        self._clean = clean
        self._terms = terms
        self._monotonic = monotonic
        self.idle: Idle[psycopg.Connection] = Idle(monotonic)
        #: For statements that take long.
        self.long = threading.Semaphore(1)
        self._first = Room(1)
        self._closed = False

    @contextlib.contextmanager
    def first(self, deadline: Deadline) -> Iterator[None]:
        """For what is asked before there are connections: by one at a time, and if it fails, by the next."""
        if not self._first.enter(deadline.left):
            raise too_late(deadline)
        try:
            yield
        finally:
            self._first.leave()

    @contextlib.contextmanager
    def connection(self, deadline: Deadline) -> Iterator[psycopg.Connection]:
        """A connection for statements of our own."""
        with self._slot(deadline):
            connection = self._take(deadline)
            try:
                yield connection
            finally:
                self._put(connection)

    @contextlib.contextmanager
    def lent(self, deadline: Deadline, loan: Loan) -> Iterator[psycopg.Connection]:
        """A connection for others' statements: it comes back as new, or it is closed, as after an error."""
        loan.ask(self._terms.room)
        loan.begin(self._entered(deadline))
        with lending(loan):
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
        for connection in self.idle.take_old():
            connection.close()

    def drop_idle(self, *, but_the_living: bool = False) -> None:
        """After one connection was lost: the others are likely to be dead as well. But a server that is full would not give
        us new ones: where the loss was told, those of which nothing is told are kept.
        """
        if but_the_living:
            little()
        for connection in self.idle.take_all():
            if but_the_living and is_quiet(connection):
                self.idle.put(connection)
            else:
                connection.close()

    def close(self) -> None:
        self._closed = True
        self.drop_idle()

    @contextlib.contextmanager
    def _slot(self, deadline: Deadline) -> Iterator[None]:
        room = self._entered(deadline)
        try:
            yield
        finally:
            room.leave()

    def _entered(self, deadline: Deadline) -> Room:
        room, seconds = self._terms.room_of_caller(), self._terms.seconds(deadline)
        if not room.enter(seconds):
            raise no_room(room, seconds)
        return room

    def _take(self, deadline: Deadline) -> psycopg.Connection:
        patience: Patience | None = None
        while (connection := self.idle.take()) is None:
            patience = patience or Patience(self._monotonic, deadline.within(self._terms.connect_seconds))
            try:
                return self._connect(deadline)
            except psycopg.OperationalError as error:
                patience.pause(error)
        return connection

    def _put(self, connection: psycopg.Connection) -> None:
        if self._closed or not is_reusable(connection):
            connection.close()
            return
        self.idle.put(connection)
        self.shrink()
