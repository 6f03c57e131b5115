"""Run statements on PostgreSQL, blocking or async. A lost answer is asked for again only where that is safe.

Both databases differ in `await` alone; what is to be decided is decided by the functions they share. Statements are
prepared only in a session that is ours alone, and nothing depends on it: a transaction-mode pooler in between is fine.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from faultline.core.faults import WireCut
from faultline.core.host import Host
from faultline.store import migrate
from faultline.store.answer import Answer, atogether, together, unknown
from faultline.store.cleaning import aclean, clean
from faultline.store.connecting import CONNECT_SECONDS, aconnect, connect
from faultline.store.deadline import Deadline, until
from faultline.store.pool import AsyncPool, Loan, Pool, Terms
from faultline.store.queue import Statement
from faultline.store.room import Room
from faultline.store.translation import connection_was_lost, translated

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence
    from datetime import datetime

    from faultline.core.faults import Faults
    from faultline.store.deadline import BoundedConnection
    from faultline.store.queue import Rows

T = TypeVar("T")

#: A statement that a session has seen so often is prepared there: a program that sends one and ends gains nothing by it.
_PREPARED_AFTER = 3
#: What a worker's own sessions are set to. A frozen or killed worker must not keep locks: the server ends its transactions.
WORKER_SETTINGS = (
    "set lock_timeout = '10s'; set idle_in_transaction_session_timeout = '60s'; set default_transaction_isolation ="
    " 'read committed'; set client_connection_check_interval = '2s'"
)

_FACTS = (
    "select p.version, p.serves_from, (select args_bytes_max from faultline.settings), faultline.clock()"
    " from faultline.protocol() p"
)


@dataclass(frozen=True, slots=True)
class Facts:
    """What a client must know of its database: its protocol fits, the limits, and what time it is there."""

    args_bytes_max: int
    clock: datetime


class Database:
    """A blocking client of one database. Connects when first used.

    `timeout`: how many seconds a call may wait for the database, from asking for a connection to the answer. Each answer
    starts the time anew. None: no limit. `answer_seconds` limits the wait for each single answer. `connect_seconds`: how
    long a server that cannot be reached, or a connection of our own, is waited for where nothing else limits it. `terms` say
    the same of connections that are shared with another database.
    """

    def __init__(
        self,
        dsn: str,
        *,
        connections_max: int = 10,
        for_worker: bool = False,
        timeout: float | None = None,
        answer_seconds: float | None = None,
        connect_seconds: float = CONNECT_SECONDS,
        terms: Terms | None = None,
        host: Host | None = None,
    ) -> None:
        self.dsn = dsn
        self._timeout = timeout
        self._answer_seconds = answer_seconds
        self._terms = terms or Terms(Room(connections_max), connect_seconds, connect_seconds)
        self.host = host or Host()
        self._for_worker = for_worker
        self._direct = False
        self._lock = threading.Lock()
        self._pool: Pool | None = None
        self._facts: Facts | None = None
        self._prepares = True

    def facts(self) -> Facts:
        """Check the schema once. Through a connection of its own: a pool would hide why it cannot connect."""
        if self._facts is None:
            deadline = self._deadline()
            with translated(self.dsn), connect(self.dsn, self.host, deadline) as connection, connection.until(deadline):
                self._facts = _read_facts(connection.execute(_FACTS).fetchone())
        return self._facts

    def know(self, facts: Facts) -> None:
        """Take over what another client has found out about the same database."""
        self._facts = facts

    def run(self, statement: Statement[T]) -> T:
        """Send one statement and commit it."""
        return self.run_all([statement])[0]

    def run_all(self, statements: Sequence[Statement[T]]) -> list[T]:
        """Send several statements in one transaction: all take effect or none."""
        self.facts()
        answer = Answer(statements, self._deadline())
        while answer.to_be_sent():
            pool = self._open_pool()
            with translated(self.dsn), answer, pool.connection(answer.deadline) as connection:
                with connection.until(answer.deadline), together(connection, statements):
                    rows = [self._send(connection, s, answer) for s in statements]
                return [s.read(found) for s, found in zip(statements, rows, strict=True)]
            self._prepares = self._prepares and not answer.unprepared
            pool.drop_idle()
        raise AssertionError("the last send either answers or raises")

    def _send(self, connection: BoundedConnection, statement: Statement[Any], answer: Answer) -> Rows:
        with wire(self.host.faults, statement.name, connection):
            sql, prepare = statement.sql.encode(), None if statement.often and self._prepares else False
            with connection.until(answer.deadline.within(statement.limit(self._answer_seconds))):
                cursor = connection.execute(sql, answer.params(statement), binary=statement.binary, prepare=prepare)
                rows = cursor.fetchall()
            answer.deadline.restart()
            return rows

    def connect(self) -> psycopg.Connection:
        """Open a connection of one's own, outside the pool."""
        with translated(self.dsn):
            return connect(self.dsn, self.host, self._deadline())

    @contextlib.contextmanager
    def connection(self, loan: Loan | None = None) -> Iterator[psycopg.Connection]:
        """Borrow a connection of the pool, for a transaction of one's own. Whatever is set there, it comes back as new.

        With `loan`, somebody else can call it in.
        """
        self.facts()
        deadline = self._deadline()
        with contextlib.ExitStack() as stack:
            # What the borrower's own statements raise is left as it is: a table of theirs that is missing is none of ours.
            with translated(self.dsn):
                connection = stack.enter_context(self._open_pool().lent(deadline, loan or Loan()))
            with _nothing_prepared(connection):
                yield connection

    def shrink(self) -> None:
        """Close what was not needed for a while."""
        if self._pool is not None:
            self._pool.shrink()

    def close(self) -> None:
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def _deadline(self) -> Deadline:
        return Deadline(self._timeout, self.host.monotonic)

    def _open(self, deadline: Deadline) -> BoundedConnection:
        connection = connect(self.dsn, self.host, deadline)
        try:
            with connection.until(deadline.within(self._answer_seconds)):
                row = connection.execute(_ABOUT_SESSION).fetchone()
                self._direct = is_direct(connection, row)
                settings = _taken_over(connection, row, for_worker=self._for_worker)
                if settings:
                    connection.execute(settings)
        except BaseException:
            connection.close()
            raise
        return connection

    def _clean(self, connection: BoundedConnection) -> BoundedConnection | None:
        renewed = _renewed(direct=self._direct, for_worker=self._for_worker)
        cleaned: BoundedConnection | None = clean(connection, *renewed)
        return cleaned

    def _open_pool(self) -> Pool:
        with self._lock:
            if self._pool is None:
                self._pool = Pool(self._open, self._clean, self._terms, self.host.monotonic)
            return self._pool


class AsyncDatabase:
    """An async client of one database. Each event loop gets a pool of its own, since a pool belongs to its loop."""

    def __init__(
        self,
        dsn: str,
        *,
        connections_max: int = 10,
        for_worker: bool = False,
        timeout: float | None = None,
        answer_seconds: float | None = None,
        connect_seconds: float = CONNECT_SECONDS,
        terms: Terms | None = None,
        host: Host | None = None,
    ) -> None:
        self.dsn = dsn
        self._timeout = timeout
        self._answer_seconds = answer_seconds
        self._connections_max = connections_max
        self._connect_seconds = connect_seconds
        self._terms = terms
        self.host = host or Host()
        self._for_worker = for_worker
        self._direct = False
        self._pools: dict[asyncio.AbstractEventLoop, AsyncPool] = {}
        self._facts: Facts | None = None
        self._prepares = True
        #: How often connections were given up and opened anew.
        self.reconnects = 0

    async def facts(self) -> Facts:
        if self._facts is None:
            deadline = self._deadline()
            with translated(self.dsn):
                async with await aconnect(self.dsn, self.host, deadline) as connection, until(connection, deadline):
                    self._facts = _read_facts(await (await connection.execute(_FACTS)).fetchone())
        return self._facts

    def know(self, facts: Facts) -> None:
        self._facts = facts

    async def run(self, statement: Statement[T]) -> T:
        return (await self.run_all([statement]))[0]

    async def run_all(self, statements: Sequence[Statement[T]]) -> list[T]:
        await self.facts()
        answer = Answer(statements, self._deadline())
        while answer.to_be_sent():
            pool = self._open_pool()
            # What takes long takes one connection at a time, so that what is quick finds another.
            turn = pool.long if any(s.seconds for s in statements) else contextlib.nullcontext()
            with translated(self.dsn), answer:
                async with turn, pool.connection(answer.deadline) as connection:
                    async with atogether(connection, statements, answer.deadline):
                        rows = [await self._send(connection, s, answer) for s in statements]
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
            answer = Answer(statements, self._deadline())
            async with pool.connection(answer.deadline) as connection:
                for statement in statements:
                    await self._send(connection, statement, answer)

        with translated(self.dsn):
            # At once: one after the other, the first would be taken again by the second.
            tried = (warm_one() for _ in range(min(connections, self._connections_max)))
            for failed in await asyncio.gather(*tried, return_exceptions=True):
                if failed is not None:
                    raise failed

    async def _send(self, connection: psycopg.AsyncConnection, statement: Statement[Any], answer: Answer) -> Rows:
        with wire(self.host.faults, statement.name, connection):
            sql, prepare = statement.sql.encode(), None if statement.often and self._prepares else False
            async with until(connection, answer.deadline.within(statement.limit(self._answer_seconds))):
                cursor = await connection.execute(sql, answer.params(statement), binary=statement.binary, prepare=prepare)
                rows = await cursor.fetchall()
            answer.deadline.restart()
            return rows

    async def connect(self) -> psycopg.AsyncConnection:
        with translated(self.dsn):
            return await aconnect(self.dsn, self.host, self._deadline())

    @contextlib.asynccontextmanager
    async def connection(self, loan: Loan | None = None) -> AsyncIterator[psycopg.AsyncConnection]:
        await self.facts()
        async with contextlib.AsyncExitStack() as stack:
            with translated(self.dsn):
                connection = await stack.enter_async_context(self._open_pool().lent(self._deadline(), loan or Loan()))
            with _nothing_prepared(connection):
                yield connection

    async def shrink(self) -> None:
        pool = self._pools.get(asyncio.get_running_loop())
        if pool is not None:
            await pool.shrink()

    async def close(self) -> None:
        self._forget_closed_loops()
        pool = self._pools.pop(asyncio.get_running_loop(), None)
        if pool is not None:
            await pool.close()

    def _deadline(self) -> Deadline:
        return Deadline(self._timeout, self.host.monotonic)

    async def _open(self, deadline: Deadline) -> psycopg.AsyncConnection:
        connection = await aconnect(self.dsn, self.host, deadline)
        try:
            async with until(connection, deadline.within(self._answer_seconds)):
                row = await (await connection.execute(_ABOUT_SESSION)).fetchone()
                self._direct = is_direct(connection, row)
                settings = _taken_over(connection, row, for_worker=self._for_worker)
                if settings:
                    await connection.execute(settings)
        except BaseException:  # being cancelled counts
            await connection.close()
            raise
        return connection

    async def _clean(self, connection: psycopg.AsyncConnection) -> psycopg.AsyncConnection | None:
        cleaned: psycopg.AsyncConnection | None = await aclean(
            connection, *_renewed(direct=self._direct, for_worker=self._for_worker)
        )
        return cleaned

    def _forget_closed_loops(self) -> None:
        """`asyncio.run` once per call is common, and each run would leave its connections behind."""
        for closed in [loop for loop in self._pools if loop.is_closed()]:
            self._pools.pop(closed).abandon()

    def _open_pool(self) -> AsyncPool:
        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop)
        if pool is None:
            self._forget_closed_loops()
            terms = self._terms or Terms(Room(self._connections_max), self._connect_seconds, self._connect_seconds)
            self._pools[loop] = pool = AsyncPool(self._open, self._clean, terms, self.host.monotonic)
        return pool


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
        return WORKER_SETTINGS.encode()
    # The verbs are made for it: at a higher level they would not see what was committed while they waited.
    return None if row and row[1] == "read committed" else b"set default_transaction_isolation = 'read committed'"


def _renewed(*, direct: bool, for_worker: bool) -> tuple[str | None, int | None]:
    """What a session of ours is set to when it comes back from others, and when it prepares. A pooler's stays as it is."""
    if not direct:
        return None, None
    return WORKER_SETTINGS if for_worker else "set default_transaction_isolation = 'read committed'", _PREPARED_AFTER


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
            raise unknown(statement.name) from error
        raise


def schema_is_right() -> Statement[Facts]:
    """Raises what is wrong with the schema, also where it was right before."""
    return Statement("schema", _FACTS, (), lambda rows: _read_facts(rows[0]), repeatable=True)


def _read_facts(row: tuple[Any, ...] | None) -> Facts:
    version, serves_from, args_bytes_max, clock = row or (0, 0, 0, None)
    migrate.check(migrate.Protocol(version, serves_from))
    return Facts(args_bytes_max, clock)
