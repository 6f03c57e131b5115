# Generated from src/faultline/store/async_database.py by `make generate`: change that file, not this one.
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
from faultline.store.connection.connecting import CONNECT_SECONDS, NAME, Patience, connect, is_full
from faultline.store.connection.deadline import Deadline, until
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
from faultline.store.external_sessions.adapter import Joined
from faultline.store.pool.fair_semaphore import Room
from faultline.store.pool.loans import Loan, Terms
from faultline.store.pool.pool import Pool
from faultline.store.pool.pools import Pools
from faultline.store.resend import Answer, unanswered
from faultline.store.translation import connection_was_lost, translated

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from faultline.store.statement import Rows, Statement

T = TypeVar("T")


class Database:
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
        self._pools = Pools(self._new_pool)
        self._facts: Facts | None = None
        self._prepares = True
        #: How often connections were dropped and opened again.
        self.reconnects = 0

    def facts(self) -> Facts:
        """Check the schema once, on a separate connection: a pool would hide why it cannot connect."""
        if self._facts is None:
            deadline = self._deadline()
            # One at a time: a program that has just started may make hundreds of calls at once.
            with translated(self.dsn), self._open_pool().first(deadline):
                self._facts = self._ask(deadline)
        return self._facts

    def _ask(self, deadline: Deadline) -> Facts:
        if self._facts is not None:
            return self._facts  # another caller has read them meanwhile
        connection = self._first_connection(deadline)
        with connection, until(connection, deadline):
            cursor = connection.execute(FACTS)
            facts = read_facts(cursor.fetchone())
            self.time.set(facts.clock)
            return facts

    def facts_and_time(self) -> Facts:
        """The facts, with a recent reading of the database's time: new ids contain it."""
        facts = self.facts()
        if self.time.is_doubtful():
            self.time.set(self.run(read_clock()))
        return facts

    def _first_connection(self, deadline: Deadline) -> psycopg.Connection:
        """Wait for a server that is full, as later calls do. An unreachable server raises at once."""
        patience = Patience(self.host.monotonic, deadline.within(self._connect_seconds))
        while True:
            try:
                return self._open(deadline)
            except psycopg.OperationalError as error:
                # A worker waits longer, and logs it.
                if self._for_worker or not is_full(str(error)):
                    raise
                patience.pause(error)

    def know(self, facts: Facts) -> None:
        """Use the facts that another client has read from the same database."""
        self._facts = facts

    def run(self, statement: Statement[T]) -> T:
        """Send one statement and commit it."""
        [answer] = self.run_all([statement])
        return answer

    def run_all(self, statements: Sequence[Statement[T]]) -> list[T]:
        """Send several statements in one transaction: all take effect or none."""
        self.facts()
        answer = Answer(statements, self._deadline())
        while answer.to_be_sent():
            pool = self._open_pool()
            # Long statements use one connection at a time, so that quick ones find another.
            turn = pool.long if any(s.seconds for s in statements) else contextlib.nullcontext()
            with translated(self.dsn), answer, turn, pool.connection(answer.deadline) as connection:
                with _together(connection, statements, answer.deadline):
                    rows = [self._send(connection, s, answer) for s in statements]
                return [s.read(found) for s, found in zip(statements, rows, strict=True)]
            self._prepares = self._prepares and not answer.unprepared
            if not answer.rolled_back:
                self.drop_idle(but_the_living=answer.losses == 1 and not answer.silent)
        raise AssertionError("the last send either answers or raises")

    def _send(self, connection: psycopg.Connection, statement: Statement[Any], answer: Answer) -> Rows:
        with wire(self.host.faults, statement.name, connection):
            sql, prepare = statement.sql.encode(), None if statement.often and self._prepares else False
            with until(connection, answer.deadline.within(statement.limit(self._answer_seconds))):
                cursor = connection.execute(sql, answer.params(statement), binary=statement.binary, prepare=prepare)
                rows = cursor.fetchall()
            answer.deadline.restart()
            return rows

    def connect(self) -> psycopg.Connection:
        """Open a connection outside the pool."""
        with translated(self.dsn):
            connection = self._open(self._deadline())
        connection.prepare_threshold = None
        return connection

    @contextlib.contextmanager
    def connection(self, loan: Loan | None = None) -> Iterator[psycopg.Connection]:
        """Borrow a connection from the pool for the caller's transaction. The pool resets it afterwards.

        With `loan`, other code can end the loan.
        """
        self.facts()
        with contextlib.ExitStack() as stack:
            # Errors of the borrower's statements pass unchanged: a missing table of theirs is not a missing schema of ours.
            with translated(self.dsn):
                connection = stack.enter_context(self._open_pool().lent(self._deadline(), loan or Loan()))
            with nothing_prepared(connection):
                yield connection

    def drop_idle(self, *, but_the_living: bool) -> None:
        """Close the idle connections after one was lost: see `AsyncPool.drop_idle`."""
        self.reconnects += 1
        self._open_pool().drop_idle(but_the_living=but_the_living)

    def shrink(self) -> None:
        """Close connections that have been idle for some time."""
        pool = self._pools.existing()
        if pool is not None:
            pool.shrink()

    def close(self) -> None:
        pool = self._pools.take_out()
        if pool is not None:
            pool.close()

    def _deadline(self) -> Deadline:
        return Deadline(self._timeout, self.host.monotonic)

    def _open(self, deadline: Deadline) -> psycopg.Connection:
        connection = connect(self.dsn, self.host, deadline, self._name, writes=self.writes)
        try:
            with until(connection, deadline.within(self._answer_seconds)):
                cursor = connection.execute(about_session(connection, for_worker=self._for_worker))
                self._direct = taken_over(connection, cursor.fetchone())
                if self._for_worker and not is_simulated(connection):
                    self._judge_history(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _judge_history(self, connection: psycopg.Connection) -> None:
        """Raises `OlderServer`."""
        try:
            cursor = connection.execute(HISTORY, prepare=False)
        except psycopg.OperationalError:
            raise
        except psycopg.Error:
            return  # the schema is missing, or this kind of server does not say it: there is nothing to compare
        servers_of(self.dsn).judge(connection, cursor.fetchone())

    def _clean(self, connection: psycopg.Connection) -> psycopg.Connection | None:
        """Reset a connection. None: the reset failed, and the connection is closed."""
        settings, prepare_threshold = set_again(direct=self._direct, for_worker=self._for_worker)
        if is_simulated(connection):
            return connection
        fresh = renewed(connection)
        try:
            with until(fresh, Deadline(CLEAN_SECONDS)):
                fresh.set_autocommit(True)
                fresh.prepare_threshold = prepare_threshold
                if settings is not None:
                    fresh.execute(cleaning(settings), prepare=False)
        except psycopg.Error:
            fresh.close()
            return None
        except BaseException:
            fresh.close()
            raise
        return fresh

    def _open_pool(self) -> Pool:
        return self._pools.opened()

    def _new_pool(self) -> Pool:
        terms = self._terms or Terms(Room(self._connections_max), self._connect_seconds, self._connect_seconds)
        return Pool(self._open, self._clean, terms, self.host.monotonic, self._is_current)

    def _is_current(self, connection: psycopg.Connection) -> bool:
        return not self._for_worker or is_simulated(connection) or servers_of(self.dsn).is_current(connection)


@contextlib.contextmanager
def _together(connection: psycopg.Connection, statements: Sequence[Statement[Any]], deadline: Deadline) -> Iterator[None]:
    if len(statements) == 1:
        yield
        return
    with until(connection, deadline):
        connection.execute("begin")
    try:
        yield
    except BaseException:
        # If this fails, the connection is lost and the server rolls back.
        with contextlib.suppress(psycopg.Error), until(connection, deadline):
            connection.execute("rollback")
        raise
    with until(connection, deadline):
        connection.execute("commit")


def run_on(connection: psycopg.Connection[Any] | Joined, statement: Statement[T]) -> T:
    """Run a statement inside the caller's transaction, without a commit."""
    if isinstance(connection, Joined):
        return connection.run(statement)
    with translated(), _own_commit(connection, statement), connection.cursor(row_factory=tuple_row) as cursor:
        cursor.execute(statement.sql.encode(), statement.params, binary=statement.binary)
        return statement.read(cursor.fetchall())


@contextlib.contextmanager
def _own_commit(connection: psycopg.Connection[Any], statement: Statement[Any]) -> Iterator[None]:
    """When the answer of an autocommitted statement is lost, it may have been committed: raise `OutcomeUnknown`."""
    alone = connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE
    try:
        yield
    except psycopg.OperationalError as error:
        if alone and connection_was_lost(error):
            raise unanswered([statement], error) from error
        raise
