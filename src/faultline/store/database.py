"""Run statements on PostgreSQL, blocking or async. A lost answer is asked for again only where that is safe.

Both databases differ in `await` alone; what is to be decided is decided by the functions they share. Statements are
prepared only in a session that is ours alone, and nothing depends on it: a transaction-mode pooler in between is fine.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from faultline.core import errors
from faultline.core.faults import WireCut
from faultline.core.host import Host
from faultline.store import migrate
from faultline.store.pool import CONNECT_SECONDS, AsyncPool, NoConnection, Pool
from faultline.store.queue import Statement
from faultline.store.translation import connection_was_lost, translated

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence
    from datetime import datetime

    from faultline.core.faults import Faults
    from faultline.store.queue import Rows

T = TypeVar("T")

_SENDS_MAX = 3
_SETTINGS: dict[str, Any] = {
    "autocommit": True,
    # Until the session is known to be ours alone.
    "prepare_threshold": None,
    # A peer that is gone without a word is noticed in seconds, not in the hours that the system's defaults take.
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}
#: A statement that a session has seen so often is prepared there: a program that sends one and ends gains nothing by it.
_PREPARED_AFTER = 3
#: What a session says that was not ours alone after all, or whose schema has changed. Nothing was run.
_UNPREPARED = (
    psycopg.errors.InvalidSqlStatementName,
    psycopg.errors.DuplicatePreparedStatement,
    psycopg.errors.FeatureNotSupported,
)
#: What a worker's own sessions are set to. A frozen or killed worker must not keep locks: the server ends its transactions.
_WORKER_SETTINGS = (
    "set lock_timeout = '10s'; set idle_in_transaction_session_timeout = '60s'; set default_transaction_isolation ="
    " 'read committed'; set client_connection_check_interval = '2s'"
)

_FACTS = (
    "select (select json_object_agg(number, checksum) from faultline.migrations),"
    " (select args_bytes_max from faultline.settings), faultline.clock()"
)


@dataclass(frozen=True, slots=True)
class Facts:
    """What a client must know of its database: the schema was found right, the limits, and what time it is there."""

    args_bytes_max: int
    clock: datetime


class Database:
    """A blocking client of one database. Connects when first used."""

    def __init__(self, dsn: str, *, connections_max: int = 10, host: Host | None = None) -> None:
        self.dsn = dsn
        self.host = host or Host()
        self._connections_max = connections_max
        self._lock = threading.Lock()
        self._pool: Pool | None = None
        self._facts: Facts | None = None
        self._prepares = True

    def facts(self) -> Facts:
        """Check the schema once. Through a connection of its own: a pool would hide why it cannot connect."""
        if self._facts is None:
            with self.connect() as connection, translated(self.dsn):
                self._facts = _read_facts(connection.execute(_FACTS).fetchone())
        return self._facts

    def run(self, statement: Statement[T]) -> T:
        """Send one statement and commit it."""
        return self.run_all([statement])[0]

    def run_all(self, statements: Sequence[Statement[T]]) -> list[T]:
        """Send several statements in one transaction: all take effect or none."""
        self.facts()
        answer = _Answer(statements)
        while answer.to_be_sent():
            pool = self._open_pool()
            with translated(self.dsn), answer, pool.connection() as connection, _together(connection, statements):
                rows = [self._send(connection, s, answer.params(s)) for s in statements]
                return [s.read(found) for s, found in zip(statements, rows, strict=True)]
            self._prepares = self._prepares and not answer.unprepared
            pool.drop_idle()
        raise AssertionError("the last send either answers or raises")

    def _send(self, connection: psycopg.Connection, statement: Statement[Any], params: tuple[Any, ...]) -> Rows:
        with wire(self.host.faults, statement.name, connection):
            sql, prepare = statement.sql.encode(), None if statement.often and self._prepares else False
            return connection.execute(sql, params, binary=statement.binary, prepare=prepare).fetchall()

    def connect(self) -> psycopg.Connection:
        """Open a connection of one's own, outside the pool."""
        with translated(self.dsn):
            return _connect(self.dsn, self.host)

    @contextlib.contextmanager
    def connection(self) -> Iterator[psycopg.Connection]:
        """Borrow a connection of the pool, for a transaction of one's own."""
        self.facts()
        with translated(self.dsn), self._open_pool().connection() as connection, _nothing_prepared(connection):
            yield connection

    def close(self) -> None:
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def _open(self) -> psycopg.Connection:
        connection = _connect(self.dsn, self.host)
        row = connection.execute(_ABOUT_SESSION).fetchone()
        settings = _taken_over(connection, row, for_worker=False)
        if settings:
            connection.execute(settings)
        return connection

    def _open_pool(self) -> Pool:
        with self._lock:
            if self._pool is None:
                self._pool = Pool(self._open, self._connections_max, self.host.monotonic)
            return self._pool


class AsyncDatabase:
    """An async client of one database. Each event loop gets a pool of its own, since a pool belongs to its loop."""

    def __init__(
        self,
        dsn: str,
        *,
        connections_max: int = 10,
        for_worker: bool = False,
        answer_seconds: float | None = None,
        connect_seconds: float = CONNECT_SECONDS,
        host: Host | None = None,
    ) -> None:
        self.dsn = dsn
        #: How long an answer is waited for. A pooler that is frozen in the middle would otherwise be waited for for ever.
        self._answer_seconds = answer_seconds
        self._connect_seconds = connect_seconds
        self.host = host or Host()
        self._connections_max = connections_max
        self._for_worker = for_worker
        self._pools: dict[asyncio.AbstractEventLoop, AsyncPool] = {}
        self._facts: Facts | None = None
        self._prepares = True
        #: How often connections were given up and opened anew.
        self.reconnects = 0

    async def facts(self) -> Facts:
        if self._facts is None:
            async with await self.connect() as connection:
                with translated(self.dsn):
                    self._facts = _read_facts(await (await connection.execute(_FACTS)).fetchone())
        return self._facts

    async def run(self, statement: Statement[T]) -> T:
        return (await self.run_all([statement]))[0]

    async def run_all(self, statements: Sequence[Statement[T]]) -> list[T]:
        await self.facts()
        answer = _Answer(statements)
        while answer.to_be_sent():
            pool = self._open_pool()
            with translated(self.dsn), answer:
                async with pool.connection() as connection, _atogether(connection, statements):
                    rows = [await self._send(connection, s, answer.params(s)) for s in statements]
                    return [s.read(found) for s, found in zip(statements, rows, strict=True)]
            self._prepares = self._prepares and not answer.unprepared
            self.reconnects += 1
            await pool.drop_idle()
        raise AssertionError("the last send either answers or raises")

    async def warm(self, statements: Sequence[Statement[Any]], *, connections: int) -> None:
        """Have so many connections at hand that have run these statements, and so have compiled and planned them before."""
        await self.facts()
        pool = self._open_pool()

        async def warm_one() -> None:
            async with pool.connection() as connection:
                for statement in statements:
                    await self._send(connection, statement, statement.params)

        with translated(self.dsn):
            # At once: one after the other, the first would be taken again by the second.
            tried = (warm_one() for _ in range(min(connections, self._connections_max)))
            for failed in await asyncio.gather(*tried, return_exceptions=True):
                if failed is not None:
                    raise failed

    async def _send(self, connection: psycopg.AsyncConnection, statement: Statement[Any], params: tuple[Any, ...]) -> Rows:
        with wire(self.host.faults, statement.name, connection):
            try:
                async with asyncio.timeout(self._answer_seconds):
                    sql, prepare = statement.sql.encode(), None if statement.often and self._prepares else False
                    cursor = await connection.execute(sql, params, binary=statement.binary, prepare=prepare)
                    return await cursor.fetchall()
            except TimeoutError as error:
                await connection.close()
                raise psycopg.OperationalError(f"no answer within {self._answer_seconds:g} s") from error

    async def connect(self) -> psycopg.AsyncConnection:
        with translated(self.dsn):
            return await _aconnect(self.dsn, self.host)

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[psycopg.AsyncConnection]:
        await self.facts()
        with translated(self.dsn):
            async with self._open_pool().connection() as connection:
                with _nothing_prepared(connection):
                    yield connection

    async def close(self) -> None:
        self._forget_closed_loops()
        pool = self._pools.pop(asyncio.get_running_loop(), None)
        if pool is not None:
            await pool.close()

    async def _open(self) -> psycopg.AsyncConnection:
        connection = await _aconnect(self.dsn, self.host)
        try:
            row = await (await connection.execute(_ABOUT_SESSION)).fetchone()
            settings = _taken_over(connection, row, for_worker=self._for_worker)
            if settings:
                await connection.execute(settings)
        except BaseException:  # being cancelled counts
            await connection.close()
            raise
        return connection

    def _forget_closed_loops(self) -> None:
        """`asyncio.run` once per call is common, and each run would leave its connections behind."""
        for closed in [loop for loop in self._pools if loop.is_closed()]:
            self._pools.pop(closed).abandon()

    def _open_pool(self) -> AsyncPool:
        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop)
        if pool is None:
            self._forget_closed_loops()
            self._pools[loop] = pool = AsyncPool(
                self._open, self._connections_max, self.host.monotonic, seconds=self._connect_seconds
            )
        return pool


class WorkerSession:
    """One connection that is opened again when it was lost, with an advisory lock that lives and dies with it.

    Behind a transaction-mode pooler there is no session to speak of: then nothing is set and no lock is held.
    """

    def __init__(self, dsn: str, *, lock: str, host: Host | None = None) -> None:
        self._dsn = dsn
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
        if connection is None or connection.closed:
            with translated(self._dsn):
                connection = _connect(self._dsn, self._host)
            self._connection, self.locked = connection, False
            self.reconnects += 1
            self.direct = self._run(connection, lambda c: is_direct(c, c.execute("select pg_backend_pid()").fetchone()))
            if self.direct:
                # A heartbeat that a crash forgets is beaten again; it need not wait for the disk.
                self._run(connection, lambda c: c.execute(f"{_WORKER_SETTINGS}; set synchronous_commit = off".encode()))
        if self.direct and not self.locked:
            lock = "select pg_try_advisory_lock(faultline.worker_lock(%s))"
            row = self._run(connection, lambda c: c.execute(lock, (self._lock_name,)).fetchone())
            self.locked = bool(row and row[0])
        return connection

    def run(self, statement: Statement[T]) -> T:
        connection = self.connect()

        def send(connection: psycopg.Connection) -> T:
            with wire(self._host.faults, statement.name, connection):
                rows = connection.execute(statement.sql.encode(), statement.params).fetchall()
            return statement.read(rows)

        return self._run(connection, send)

    def interrupt(self) -> None:
        """Cut the wire from another thread: a call that hangs on it ends with an error, and a fresh one is opened."""
        connection = self._connection
        with contextlib.suppress(psycopg.Error, OSError, ValueError):
            if connection is not None and not connection.closed:
                with socket.socket(fileno=os.dup(connection.fileno())) as wire:
                    wire.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        connection, self._connection, self.locked = self._connection, None, False
        if connection is not None:
            connection.close()

    def _run(self, connection: psycopg.Connection, call: Callable[[psycopg.Connection], T]) -> T:
        try:
            with translated(self._dsn):
                return call(connection)
        except BaseException:
            # Whatever it was, a fresh connection is the simplest state to go on from.
            self.close()
            raise


def _connect(dsn: str, host: Host) -> psycopg.Connection:
    opened: psycopg.Connection = (host.connect or psycopg.connect)(dsn, connect_timeout=int(CONNECT_SECONDS), **_SETTINGS)
    return opened


async def _aconnect(dsn: str, host: Host) -> psycopg.AsyncConnection:
    connect = host.aconnect or psycopg.AsyncConnection.connect
    opened: psycopg.AsyncConnection = await connect(dsn, connect_timeout=int(CONNECT_SECONDS), **_SETTINGS)
    return opened


@contextlib.contextmanager
def wire(faults: Faults, name: str, connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> Iterator[None]:
    """The two fault points of a statement. A wire that is cut there is closed under the connection's feet."""
    if not faults.wanted:
        yield
        return
    try:
        faults.reach(f"before_{name}_sent")
        yield
        faults.reach(f"after_{name}_committed")
    except WireCut as cut:
        connection.pgconn.finish()
        raise psycopg.OperationalError(f"the wire was cut: {cut}") from cut


def is_direct(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], answer: tuple[Any, ...] | None) -> bool:
    """Whether we talk to the server itself. A pooler introduces itself with a process id that is none of the server's."""
    return answer is not None and answer[0] == connection.info.backend_pid


_ABOUT_SESSION = "select pg_backend_pid(), current_setting('default_transaction_isolation')"


def _taken_over(
    connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any],
    row: tuple[Any, ...] | None,
    *,
    for_worker: bool,
) -> bytes | None:
    """Make use of a session that is ours alone, and tell what to set there. A pooler's is not, and stays as it is."""
    if not is_direct(connection, row):
        return None
    connection.prepare_threshold = _PREPARED_AFTER
    if for_worker:
        return _WORKER_SETTINGS.encode()
    # The verbs are made for it: at a higher level they would not see what was committed while they waited.
    return None if row and row[1] == "read committed" else b"set default_transaction_isolation = 'read committed'"


@contextlib.contextmanager
def _nothing_prepared(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> Iterator[None]:
    """What others send is theirs: a plan that was kept fails when the table it reads has changed."""
    ours, connection.prepare_threshold = connection.prepare_threshold, None
    try:
        yield
    finally:
        connection.prepare_threshold = ours


def run_on(connection: psycopg.Connection[Any], statement: Statement[T]) -> T:
    """Run a statement inside the caller's own transaction. Nothing is committed here."""
    with translated(), _own_commit(connection, statement), connection.cursor(row_factory=tuple_row) as cursor:
        return statement.read(cursor.execute(statement.sql.encode(), statement.params, binary=statement.binary).fetchall())


async def arun_on(connection: psycopg.AsyncConnection[Any], statement: Statement[T]) -> T:
    with translated(), _own_commit(connection, statement):
        async with connection.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(statement.sql.encode(), statement.params, binary=statement.binary)
            return statement.read(await cursor.fetchall())


@contextlib.contextmanager
def _own_commit(
    connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], statement: Statement[Any]
) -> Iterator[None]:
    """A statement that is a transaction of its own may have been committed when its answer is lost."""
    alone = connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE
    try:
        yield
    except psycopg.OperationalError as error:
        if alone and connection_was_lost(error):
            raise _unknown(statement.name) from error
        raise


class _Answer(contextlib.AbstractContextManager[None]):
    """Around each send: swallows the loss of a connection while the statements may be sent again.

    Once something was sent and no answer came, every further failure means that the outcome is unknown: also the failure
    to connect again, which by itself would say that nothing was written.
    """

    def __init__(self, statements: Sequence[Statement[Any]]) -> None:
        self._names = ", ".join(sorted({statement.name for statement in statements}))
        self._repeatable = all(statement.repeatable for statement in statements)
        self._sends_left = _SENDS_MAX
        self._unanswered = False
        #: What the session had prepared is not there, or of no use any more.
        self.unprepared = False

    def to_be_sent(self) -> bool:
        self._sends_left -= 1
        return self._sends_left >= 0

    def params(self, statement: Statement[Any]) -> tuple[Any, ...]:
        return statement.params_again if self._unanswered and statement.params_again else statement.params

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, psycopg.errors.SerializationFailure | psycopg.errors.DeadlockDetected):
            return self._repeatable and self._sends_left > 0  # rolled back by the server
        if isinstance(error, _UNPREPARED) and not self.unprepared and self._sends_left > 0:
            self.unprepared = True
            return True
        never_sent = isinstance(error, NoConnection)
        if not never_sent and not connection_was_lost(error):
            return False
        if never_sent and not self._unanswered:
            return False
        self._unanswered = True
        if not never_sent and self._repeatable and self._sends_left > 0:
            return True
        raise _unknown(self._names) from error


def _together(c: psycopg.Connection, statements: Sequence[Statement[Any]]) -> contextlib.AbstractContextManager[Any]:
    return c.transaction() if len(statements) > 1 else contextlib.nullcontext()


def _atogether(
    c: psycopg.AsyncConnection, statements: Sequence[Statement[Any]]
) -> contextlib.AbstractAsyncContextManager[Any]:
    return c.transaction() if len(statements) > 1 else contextlib.nullcontext()


def _unknown(names: str) -> errors.OutcomeUnknown:
    return errors.OutcomeUnknown(
        f"the connection was lost while {names} ran; it may or may not have happened. "
        "Look the job up, or send an enqueue again with the same id"
    )


def schema_is_right() -> Statement[Facts]:
    """Raises what is wrong with the schema, also where it was right before."""
    return Statement("schema", _FACTS, (), lambda rows: _read_facts(rows[0]), repeatable=True)


def _read_facts(row: tuple[Any, ...] | None) -> Facts:
    checksums, args_bytes_max, clock = row or (None, 0, None)
    migrate.check({int(number): checksum for number, checksum in (checksums or {}).items()})
    return Facts(args_bytes_max, clock)
