# Generated from src/faultline/store/pool/async_pool.py by `make generate`: change that file, not this one.
"""A pool: opens connections when needed and keeps them for some seconds. Nothing runs in the background.

psycopg's own pools run threads and tasks: the async one can hang the end of `asyncio.run`, and both hide why they cannot
connect. A list of idle connections and a limit are enough for us.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

import psycopg

from faultline.store.connection.connecting import Patience, too_late
from faultline.store.connection.state import is_quiet, is_reusable, little
from faultline.store.pool.fair_semaphore import Room
from faultline.store.pool.idle import Idle
from faultline.store.pool.loans import Loan, Terms, lending, no_room

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from faultline.store.connection.deadline import Deadline


class Pool:
    """For threads.

    `connect` opens a connection within a deadline, ready for use. `clean` resets one that was lent; None: the reset failed.
    `is_current`: its server is still the one to use.
    """

    def __init__(
        self,
        connect: Callable[[Deadline], psycopg.Connection],
        clean: Callable[[psycopg.Connection], psycopg.Connection | None],
        terms: Terms,
        monotonic: Callable[[], float] = time.monotonic,
        is_current: Callable[[psycopg.Connection], bool] = lambda _: True,
    ) -> None:
        self._connect = connect
        self._clean = clean
        self._terms = terms
        self._monotonic = monotonic
        self._is_current = is_current
        self.idle: Idle[psycopg.Connection] = Idle(monotonic)
        #: Held by a statement that takes long.
        self.long = threading.Semaphore(1)
        self._first = Room(1)
        self._closed = False

    @contextlib.contextmanager
    def first(self, deadline: Deadline) -> Iterator[None]:
        """Let one caller at a time ask what must be known before the pool opens connections."""
        if not self._first.enter(deadline.left):
            raise too_late(deadline)
        try:
            yield
        finally:
            self._first.leave()

    @contextlib.contextmanager
    def connection(self, deadline: Deadline) -> Iterator[psycopg.Connection]:
        """A connection for our own statements."""
        with self._slot(deadline):
            connection = self._take(deadline)
            try:
                yield connection
            finally:
                self._put(connection)

    @contextlib.contextmanager
    def lent(self, deadline: Deadline, loan: Loan) -> Iterator[psycopg.Connection]:
        """A connection for the user's statements. Afterwards it is reset, or closed after an error."""
        loan.ask(self._terms.room)
        loan.begin(self._entered(deadline))
        with lending(loan):
            connection = self._take(deadline)
            try:
                yield connection
            except BaseException:
                connection.close()  # does not really wait, so no cancellation can hide the error
                raise
            cleaned = self._clean(connection) if is_reusable(connection) else None
            self._put(cleaned or connection)

    def shrink(self) -> None:
        """Close connections that have been idle for some time."""
        for connection in self.idle.take_old():
            connection.close()

    def drop_idle(self, *, but_the_living: bool = False) -> None:
        """Close the idle connections after one was lost: the others are probably dead too.

        `but_the_living` keeps those on which the server has reported nothing: a full server would not let us open new ones.
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
        while (connection := self._take_idle()) is None:
            patience = patience or Patience(self._monotonic, deadline.within(self._terms.connect_seconds))
            try:
                return self._connect(deadline)
            except psycopg.OperationalError as error:
                patience.pause(error)
        return connection

    def _take_idle(self) -> psycopg.Connection | None:
        """Look at the socket first: after a restart or a promotion, connections have ended without being used."""
        while (connection := self.idle.take()) is not None:
            if is_quiet(connection) and self._is_current(connection):
                return connection
            connection.close()
        return None

    def _put(self, connection: psycopg.Connection) -> None:
        if not is_reusable(connection):
            connection.close()
            return
        self.idle.put(connection)
        self.shrink()
        if self._closed:  # looked at last: another thread may close it at any moment
            self.drop_idle()
