"""Run statements on PostgreSQL. After a lost answer a statement is sent again only where that is safe.

The async and the blocking database differ only in `await`. Code that differs by more has two forms in modules that both use:
in `connection/` `connecting` and `deadline`, in `pool/` `pools` and `fair_semaphore`. Both work behind a transaction-mode
pooler.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from faultline.core.database_time import DatabaseTime
from faultline.core.host import Host
from faultline.core.settings import whole
from faultline.store.connection.connecting import CONNECT_SECONDS, NAME, Patience, aconnect, is_full
from faultline.store.connection.deadline import Deadline, auntil
from faultline.store.connection.servers import HISTORY, servers_of
from faultline.store.connection.session_settings import (
    CLEAN_SECONDS,
    about_session,
    cleaning,
    nothing_prepared,
    renewed,
    set_again,
    taken_over,
)
from faultline.store.connection.state import is_simulated, wire
from faultline.store.database_facts import FACTS, Facts, read_clock, read_facts
from faultline.store.external_sessions.adapter import AsyncJoined
from faultline.store.pool.async_pool import AsyncPool
from faultline.store.pool.fair_semaphore import Room
from faultline.store.pool.loans import Loan, Terms
from faultline.store.pool.pools import AsyncPools
from faultline.store.resend import Answer, unanswered
from faultline.store.translation import connection_was_lost, translated

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from faultline.store.statement import Rows, Statement

T = TypeVar("T")


class AsyncDatabase:
    """An async client of one database. Connects on first use; each event loop gets its own connections.

    `timeout`: how many seconds a call may wait for the database, from asking for a connection to the answer. Each answer
    restarts the count. None: no limit. `answer_seconds` limits the wait for each answer. `connect_seconds` limits the wait
    for an unreachable server or a free connection where nothing else does; `terms` does so for connections that are shared
    with another database. `name`: the application name of the sessions.
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
        name: str = NAME,
        host: Host | None = None,
    ) -> None:
        self.dsn = dsn
        self._timeout = timeout
        self._answer_seconds = answer_seconds
        self._connections_max = whole("connections_max", connections_max)
        self._connect_seconds = connect_seconds
        self._terms = terms
        self._name = name
        self.host = host or Host()
        #: May be shared with another client of the same database.
        self.time = DatabaseTime(self.host.monotonic, self.host.seconds)
        self._for_worker = for_worker
        #: A server that only reads is of no use, as for everything but commands and screens that show something.
        self.writes = for_worker
        self._direct = False
        self._pools = AsyncPools(self._new_pool)
        self._facts: Facts | None = None
        self._prepares = True
        #: How often connections were dropped and opened again.
        self.reconnects = 0

    async def facts(self) -> Facts:
        """Check the schema once, on a separate connection: a pool would hide why it cannot connect."""
        if self._facts is None:
            deadline = self._deadline()
            # One at a time: a program that has just started may make hundreds of calls at once.
            with translated(self.dsn):
                async with self._open_pool().first(deadline):
                    self._facts = await self._ask(deadline)
        return self._facts

    async def _ask(self, deadline: Deadline) -> Facts:
        if self._facts is not None:
            return self._facts  # another caller has read them meanwhile
        connection = await self._first_connection(deadline)
        async with connection, auntil(connection, deadline):
            cursor = await connection.execute(FACTS)
            facts = read_facts(await cursor.fetchone())
            self.time.set(facts.clock)
            return facts

    async def facts_and_time(self) -> Facts:
        """The facts, with a recent reading of the database's time: new ids contain it."""
        facts = await self.facts()
        if self.time.is_doubtful():
            self.time.set(await self.run(read_clock()))
        return facts

    async def _first_connection(self, deadline: Deadline) -> psycopg.AsyncConnection:
        """Wait for a server that is full, as later calls do. An unreachable server raises at once."""
        patience = Patience(self.host.monotonic, deadline.within(self._connect_seconds))
        while True:
            try:
                return await self._open(deadline)
            except psycopg.OperationalError as error:
                # A worker waits longer, and logs it.
                if self._for_worker or not is_full(str(error)):
                    raise
                await patience.apause(error)

    def know(self, facts: Facts) -> None:
        """Use the facts that another client has read from the same database."""
        self._facts = facts

    async def run(self, statement: Statement[T]) -> T:
        """Send one statement and commit it."""
        [answer] = await self.run_all([statement])
        return answer

    async def run_all(self, statements: Sequence[Statement[T]]) -> list[T]:
        """Send several statements in one transaction: all take effect or none."""
        await self.facts()
        answer = Answer(statements, self._deadline())
        while answer.to_be_sent():
            pool = self._open_pool()
            # Long statements use one connection at a time, so that quick ones find another.
            turn = pool.long if any(s.seconds for s in statements) else contextlib.nullcontext()
            with translated(self.dsn), answer:
                async with turn, pool.connection(answer.deadline) as connection:
                    async with _together(connection, statements, answer.deadline):
                        rows = [await self._send(connection, s, answer) for s in statements]
                    return [s.read(found) for s, found in zip(statements, rows, strict=True)]
            self._prepares = self._prepares and not answer.unprepared
            if not answer.rolled_back:
                await self.drop_idle(but_the_living=answer.losses == 1 and not answer.silent)
        raise AssertionError("the last send either answers or raises")

    async def _send(self, connection: psycopg.AsyncConnection, statement: Statement[Any], answer: Answer) -> Rows:
        with wire(self.host.faults, statement.name, connection):
            sql, prepare = statement.sql.encode(), None if statement.often and self._prepares else False
            async with auntil(connection, answer.deadline.within(statement.limit(self._answer_seconds))):
                cursor = await connection.execute(sql, answer.params(statement), binary=statement.binary, prepare=prepare)
                rows = await cursor.fetchall()
            answer.deadline.restart()
            return rows

    async def connect(self) -> psycopg.AsyncConnection:
        """Open a connection outside the pool."""
        with translated(self.dsn):
            connection = await self._open(self._deadline())
        connection.prepare_threshold = None
        return connection

    @contextlib.asynccontextmanager
    async def connection(self, loan: Loan | None = None) -> AsyncIterator[psycopg.AsyncConnection]:
        """Borrow a connection from the pool for the caller's transaction. The pool resets it afterwards.

        With `loan`, other code can end the loan.
        """
        await self.facts()
        async with contextlib.AsyncExitStack() as stack:
            # Errors of the borrower's statements pass unchanged: a missing table of theirs is not a missing schema of ours.
            with translated(self.dsn):
                connection = await stack.enter_async_context(self._open_pool().lent(self._deadline(), loan or Loan()))
            with nothing_prepared(connection):
                yield connection

    async def drop_idle(self, *, but_the_living: bool) -> None:
        """Close the idle connections after one was lost: see `AsyncPool.drop_idle`."""
        self.reconnects += 1
        await self._open_pool().drop_idle(but_the_living=but_the_living)

    async def shrink(self) -> None:
        """Close connections that have been idle for some time."""
        pool = self._pools.existing()
        if pool is not None:
            await pool.shrink()

    async def close(self) -> None:
        pool = self._pools.take_out()
        if pool is not None:
            await pool.close()

    def _deadline(self) -> Deadline:
        return Deadline(self._timeout, self.host.monotonic)

    async def _open(self, deadline: Deadline) -> psycopg.AsyncConnection:
        connection = await aconnect(self.dsn, self.host, deadline, self._name, writes=self.writes)
        try:
            async with auntil(connection, deadline.within(self._answer_seconds)):
                cursor = await connection.execute(about_session(connection, for_worker=self._for_worker))
                self._direct = taken_over(connection, await cursor.fetchone())
                if self._for_worker and not is_simulated(connection):
                    await self._judge_history(connection)
        except BaseException:  # being cancelled counts
            await connection.close()
            raise
        return connection

    async def _judge_history(self, connection: psycopg.AsyncConnection) -> None:
        """Raises `OlderServer`."""
        try:
            cursor = await connection.execute(HISTORY, prepare=False)
        except psycopg.OperationalError:
            raise
        except psycopg.Error:
            return  # the schema is missing, or this kind of server does not say it: there is nothing to compare
        servers_of(self.dsn).judge(connection, await cursor.fetchone())

    async def _clean(self, connection: psycopg.AsyncConnection) -> psycopg.AsyncConnection | None:
        """Reset a connection. None: the reset failed, and the connection is closed."""
        settings, prepare_threshold = set_again(direct=self._direct, for_worker=self._for_worker)
        if is_simulated(connection):
            return connection
        fresh = renewed(connection)
        try:
            async with auntil(fresh, Deadline(CLEAN_SECONDS)):
                await fresh.set_autocommit(True)
                fresh.prepare_threshold = prepare_threshold
                if settings is not None:
                    await fresh.execute(cleaning(settings), prepare=False)
        except psycopg.Error:
            await fresh.close()
            return None
        except BaseException:  # being cancelled counts
            await fresh.close()
            raise
        return fresh

    def _open_pool(self) -> AsyncPool:
        return self._pools.opened()

    def _new_pool(self) -> AsyncPool:
        terms = self._terms or Terms(Room(self._connections_max), self._connect_seconds, self._connect_seconds)
        return AsyncPool(self._open, self._clean, terms, self.host.monotonic, self._is_current)

    def _is_current(self, connection: psycopg.AsyncConnection) -> bool:
        return not self._for_worker or is_simulated(connection) or servers_of(self.dsn).is_current(connection)


@contextlib.asynccontextmanager
async def _together(
    connection: psycopg.AsyncConnection, statements: Sequence[Statement[Any]], deadline: Deadline
) -> AsyncIterator[None]:
    if len(statements) == 1:
        yield
        return
    async with auntil(connection, deadline):
        await connection.execute("begin")
    try:
        yield
    except BaseException:
        # If this fails, the connection is lost and the server rolls back.
        with contextlib.suppress(psycopg.Error):
            async with auntil(connection, deadline):
                await connection.execute("rollback")
        raise
    async with auntil(connection, deadline):
        await connection.execute("commit")


async def arun_on(connection: psycopg.AsyncConnection[Any] | AsyncJoined, statement: Statement[T]) -> T:
    """Run a statement inside the caller's transaction, without a commit."""
    if isinstance(connection, AsyncJoined):
        return await connection.run(statement)
    with translated(), _own_commit(connection, statement):
        async with connection.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(statement.sql.encode(), statement.params, binary=statement.binary)
            return statement.read(await cursor.fetchall())


@contextlib.contextmanager
def _own_commit(connection: psycopg.AsyncConnection[Any], statement: Statement[Any]) -> Iterator[None]:
    """When the answer of an autocommitted statement is lost, it may have been committed: raise `OutcomeUnknown`."""
    alone = connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE
    try:
        yield
    except psycopg.OperationalError as error:
        if alone and connection_was_lost(error):
            raise unanswered([statement], error) from error
        raise
