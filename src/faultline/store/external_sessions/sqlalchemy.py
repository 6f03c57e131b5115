"""Sessions and connections of SQLAlchemy, with the drivers psycopg, asyncpg and psycopg2.

In `job.transaction(session)` only the engine may commit: a commit from inside would end the fence, and later writes would
not be fenced. So a hook refuses it before anything is sent. SQL text can hide one; the database notices that at the end.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from psycopg.pq import TransactionStatus
from sqlalchemy import Connection, event
from sqlalchemy.exc import InvalidRequestError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from faultline.core.errors import ConfigError, FenceBroken
from faultline.store.external_sessions import drivers
from faultline.store.external_sessions.adapter import AsyncJoined, Joined, numbered, plain, with_uuids

if TYPE_CHECKING:
    from collections.abc import Callable

    from faultline.store.statement import Rows

T = TypeVar("T")
_DRIVERS = ("psycopg", "asyncpg", "psycopg2")


def adapted(session: Any) -> Joined | AsyncJoined | None:
    if isinstance(session, scoped_session | async_scoped_session):
        session = session()  # of this thread or task
    if isinstance(session, AsyncSession):
        return _Async(session, session.sync_session)
    if isinstance(session, AsyncConnection):
        # Before it is started there is none below it.
        return _Async(session, session.sync_connection) if session.sync_connection is not None else _NotStarted(session)
    return _Blocking(session) if isinstance(session, Session | Connection) else None


class _Blocking(Joined):
    def __init__(self, given: Session | Connection) -> None:
        super().__init__(given)
        self.what = f"the SQLAlchemy {type(given).__name__}"
        #: The connection of the job's transaction, and the driver's own below it.
        self._connection: Connection | None = None
        self._driver: Any = None
        self._may_commit = True
        self._rolled_back = self._was_open = False

    @property
    def is_closed(self) -> bool:
        return isinstance(self.given, Connection) and self.given.closed

    @property
    def is_alone(self) -> bool:
        given = self.given if isinstance(self.given, Connection) else self.given.get_bind()
        chosen = given.get_execution_options().get("isolation_level")
        # As `create_engine(isolation_level=…)` keeps it. Nothing may be sent here.
        return bool((chosen or getattr(given.dialect, "_on_connect_isolation_level", None)) == "AUTOCOMMIT")

    @property
    def was_rolled_back(self) -> bool:
        return self._rolled_back

    def send(self, sql: str, params: tuple[Any, ...]) -> Rows:
        connection = self._opened()
        driver = connection.dialect.driver
        if driver not in _DRIVERS:
            raise ConfigError(f"{self.what} uses the driver {driver}; use one of {', '.join(_DRIVERS)}")
        result = connection.exec_driver_sql(
            numbered(sql) if driver == "asyncpg" else sql,
            plain(params) or None,
            # A program may stream all its results, by a cursor on the server.
            execution_options={"stream_results": False},
        )
        description = getattr(result.cursor, "description", None)
        return with_uuids(result.fetchall(), description)

    def _opened(self) -> Connection:
        return self.given if isinstance(self.given, Connection) else self.given.connection()

    # The job's transaction

    def begin(self) -> None:
        given = self.given
        if given.in_nested_transaction():
            self._refuse("is inside a savepoint; begin the job's transaction outside")
        if isinstance(given, Session):
            if given.twophase:
                self._refuse("uses two-phase commits, which a job's transaction cannot")
            bound = given.get_bind()
            if isinstance(bound, Connection) and bound.in_transaction():
                self._refuse("is bound to a connection with an open transaction, so its commit would commit nothing")
        if self.is_alone:
            self._refuse("commits each statement by itself (AUTOCOMMIT)")
        self.may_begin_again = not given.in_transaction()
        connection = self._opened()
        if not connection.in_transaction():
            connection.begin()
        self._connection, self._driver = connection, connection.connection.driver_connection
        self._may_commit = self._rolled_back = self._was_open = False
        self._hook(event.listen)

    def flush(self) -> None:
        if isinstance(self.given, Session):
            self.given.flush()

    def commit(self) -> None:
        self._may_commit = True
        self.given.commit()

    def roll_back(self) -> None:
        try:
            self.given.rollback()
        except InvalidRequestError:
            if not self._may_commit:
                raise
            # A hook has raised after the commit, which leaves the session unable to go on.
            self.given.close()

    def end(self) -> None:
        if self._connection is not None:
            self._may_commit = True
            self._hook(event.remove)
            self._connection = self._driver = None

    @property
    def transaction_status(self) -> TransactionStatus:
        if self._driver is None:
            return TransactionStatus.UNKNOWN
        return TransactionStatus.INERROR if self._rolled_back else drivers.status(self._driver)

    @property
    def closed(self) -> bool:
        return self._driver is None or drivers.is_closed(self._driver)

    def fileno(self) -> int:
        return drivers.fileno(self._driver)

    def _hook(self, change: Callable[..., None]) -> None:
        if isinstance(self.given, Session):
            change(self.given, "before_commit", self._at_session_commit)
        with contextlib.suppress(Exception):  # a connection that is gone has no hooks
            change(self._connection, "commit", self._at_commit)
            change(self._connection, "rollback", self._at_rollback)
            change(self._connection, "before_cursor_execute", self._at_statement)

    def _at_session_commit(self, session: Session) -> None:
        if not session.in_nested_transaction():
            self._at_commit(session)

    def _at_commit(self, _: object) -> None:
        if not self._may_commit:
            self._refuse(
                "must not be committed inside the job's transaction: later writes would not be fenced. The end of the"
                " `with` block commits it, an exception rolls it back; savepoints are allowed"
            )

    def _at_statement(self, *_: object) -> None:
        """A driver that did not notice the end of its transaction would commit each further statement by itself."""
        is_idle = self.transaction_status == TransactionStatus.IDLE
        # A driver begins it with the first statement, which is the fence.
        self._was_open = self._was_open or not is_idle
        if is_idle and self._was_open and not self._may_commit:
            raise FenceBroken(
                f"{self.what} has ended the job's transaction by SQL: what it committed is not undone, and the job is not"
                " completed; let the end of the `with` block end the transaction"
            )

    def _at_rollback(self, _: object) -> None:
        self._rolled_back = not self._may_commit

    def _refuse(self, why: str) -> None:
        raise ConfigError(f"{self.what} {why}")


class _Async(AsyncJoined):
    """The blocking one below it, in SQLAlchemy's own greenlet."""

    def __init__(self, given: AsyncSession | AsyncConnection, below: Session | Connection) -> None:
        super().__init__(given)
        self.what = f"the SQLAlchemy {type(given).__name__}"
        self._below = _Blocking(below)
        self._below.what = self.what

    @property
    def is_closed(self) -> bool:
        return self._below.is_closed

    @property
    def is_alone(self) -> bool:
        return self._below.is_alone

    @property
    def may_begin_again(self) -> bool:  # type: ignore[override]
        return self._below.may_begin_again

    @property
    def was_rolled_back(self) -> bool:
        return self._below.was_rolled_back

    @property
    def transaction_status(self) -> TransactionStatus:
        return self._below.transaction_status

    @property
    def closed(self) -> bool:
        return self._below.closed

    def fileno(self) -> int:
        return self._below.fileno()

    async def send(self, sql: str, params: tuple[Any, ...]) -> Rows:
        return await self._in_greenlet(partial(self._below.send, sql, params))

    async def begin(self) -> None:
        await self._in_greenlet(self._below.begin)

    async def flush(self) -> None:
        await self._in_greenlet(self._below.flush)

    async def commit(self) -> None:
        await self._in_greenlet(self._below.commit)

    async def roll_back(self) -> None:
        await self._in_greenlet(self._below.roll_back)

    def end(self) -> None:
        self._below.end()

    async def _in_greenlet(self, call: Callable[[], T]) -> T:
        found: T = await self.given.run_sync(lambda _: call())
        return found


class _NotStarted(AsyncJoined):
    what = "the SQLAlchemy AsyncConnection"

    @property
    def is_closed(self) -> bool:
        return True

    def refuse_closed(self) -> None:
        raise ConfigError(f"{self.what} is not connected; open it with `async with engine.begin() as connection`")

    async def begin(self) -> None:
        self.refuse_closed()
