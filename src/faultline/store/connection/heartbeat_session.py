"""The session of a worker's heartbeat: one connection, with the advisory lock that shows that the worker is alive."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import psycopg

from faultline.core.errors import DatabaseUnavailable
from faultline.core.host import Host
from faultline.store.connection.connecting import CONNECT_SECONDS, connect, hosts
from faultline.store.connection.deadline import Deadline, until
from faultline.store.connection.servers import HISTORY, servers_of
from faultline.store.connection.session_settings import about_session, is_direct
from faultline.store.connection.state import cut, is_reusable, is_simulated, wire
from faultline.store.translation import translated

if TYPE_CHECKING:
    from collections.abc import Callable

    from faultline.store.statement import Statement

T = TypeVar("T")

#: A heartbeat need not wait for the disk: one that a crash loses is repeated. It waits for a lock for less time than for an
#: answer: a locked table must not look like a frozen server.
_BEAT_SETTINGS = {"synchronous_commit": "off", "lock_timeout": "1s"}


def _set_up(connection: psycopg.Connection) -> bool:
    about = about_session(connection, for_worker=True, **_BEAT_SETTINGS)
    return is_direct(connection, connection.execute(about).fetchone())


def session_name(worker_id: str) -> str:
    """The application name of the sessions that claim, complete, beat or listen."""
    return f"faultline worker {worker_id}"


class WorkerSession:
    """One connection that reconnects after a loss, with an advisory lock that ends with it.

    A call without an answer within `answer_seconds` fails and closes the connection. The next call opens a new one, which
    after a failover leads to the new primary. Each host of the DSN is tried for `seconds`. A transaction-mode pooler gives
    us no session: then nothing is set and no lock is held.
    """

    def __init__(
        self,
        dsn: str,
        *,
        lock: str,
        seconds: float = CONNECT_SECONDS,
        answer_seconds: Callable[[], float] = lambda: CONNECT_SECONDS,
        host: Host | None = None,
    ) -> None:
        self._dsn = dsn
        self._seconds = seconds
        self._answer_seconds = answer_seconds
        self._host = host or Host()
        self._lock_name = lock
        self._connection: psycopg.Connection | None = None
        self.direct = False
        self.locked = False
        self.reconnects = -1

    @property
    def connected(self) -> bool:
        return self._connection is not None and not self._connection.closed

    def connect(self) -> psycopg.Connection:
        connection = self._connection
        if connection is not None and not self._is_current(connection):
            self.close()
        if connection is None or connection.closed:
            with translated(self._dsn):
                deadline = self._deadline(self._seconds * hosts(self._dsn))
                connection = connect(self._dsn, self._host, deadline, session_name(self._lock_name), writes=True)
            self._connection, self.locked = connection, False
            self.reconnects += 1
            self.direct = self._run(connection, _set_up)
            if not is_simulated(connection):
                self._run(connection, self._judge_history)
        if self.direct and not self.locked:
            lock = "select pg_try_advisory_lock(faultline.worker_lock(%s))"
            row = self._run(connection, lambda c: c.execute(lock, (self._lock_name,)).fetchone())
            self.locked = bool(row and row[0])
        return connection

    def _is_current(self, connection: psycopg.Connection) -> bool:
        return is_simulated(connection) or servers_of(self._dsn).is_current(connection)

    def _judge_history(self, connection: psycopg.Connection) -> None:
        """Raises `OlderServer`: its answers about leases would be believed."""
        try:
            row = connection.execute(HISTORY).fetchone()
        except psycopg.OperationalError:
            raise
        except psycopg.Error:
            return  # this kind of server does not say it: there is nothing to compare
        servers_of(self._dsn).judge(connection, row)

    def run(self, statement: Statement[T]) -> T:
        connection = self.connect()

        def send(connection: psycopg.Connection) -> T:
            with wire(self._host.faults, statement.name, connection):
                rows = connection.execute(statement.sql.encode(), statement.params).fetchall()
            return statement.read(rows)

        return self._run(connection, send)

    def interrupt(self) -> None:
        """Cut the connection from another thread: a hanging call fails, and the next call reconnects."""
        connection = self._connection
        if connection is not None:
            cut(connection)

    def close(self) -> None:
        connection, self._connection, self.locked = self._connection, None, False
        if connection is not None:
            connection.close()

    def _deadline(self, seconds: float) -> Deadline:
        return Deadline(seconds)

    def _run(self, connection: psycopg.Connection, call: Callable[[psycopg.Connection], T]) -> T:
        try:
            with translated(self._dsn), until(connection, self._deadline(self._answer_seconds())):
                return call(connection)
        except BaseException as error:
            # Keep the session, and with it the advisory lock, after a refused statement. Close it if the server cannot be
            # used: another one may be the primary now.
            if isinstance(error, DatabaseUnavailable) or not is_reusable(connection):
                self.close()
            raise
