"""Wires between simulated hosts and a real database: slow, lossy, cut. Everything on them happens at one virtual instant.

A connection here stands in for psycopg's, blocking or async, with as much of its face as the store uses. Underneath is a
real session, which is told the virtual time before every statement.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self

import psycopg
from psycopg.pq import TransactionStatus

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from faultline_proof.world.server import Hint, Server, Session
    from faultline_proof.world.weather import Weather

_LOCK_PAUSE_SECONDS = 0.1
_LOCK_PATIENCE_SECONDS = 10.0
_MOMENTS = 6000
_MADE_UP = "refused by the world"
_WHO = b"select pg_backend_pid()"
_DUE = b"faultline.due_schedules("


class _Shown:
    def __init__(self, link: _Link) -> None:
        self._link = link

    @property
    def backend_pid(self) -> int:
        return self._link.backend_pid

    @property
    def transaction_status(self) -> TransactionStatus:
        return self._link.status


class _Rows:
    """An answer that has arrived."""

    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows

    def fetchall(self) -> list[Any]:
        return self.rows

    def fetchone(self) -> Any:
        return self.rows[0] if self.rows else None


class _AsyncRows(_Rows):
    async def fetchall(self) -> list[Any]:  # type: ignore[override]
        return self.rows

    async def fetchone(self) -> Any:
        return self.rows[0] if self.rows else None


class _Link:
    """What blocking and async connections share."""

    #: Talks to the server itself, in a session of its own. The others behave as behind a pooler: they have a session only
    #: for as long as a transaction lasts, and nobody listens there, all is polled.
    direct = False
    autocommit = True
    prepare_threshold: int | None = None
    #: A statement waits for a lock. On the others it fails at once.
    waits = False
    #: What was notified and not yet read, of one that listens.
    hints: asyncio.Queue[Hint] | None = None

    def __init__(self, server: Server, weather: Weather) -> None:
        if not server.up or not weather.reachable:
            raise psycopg.OperationalError("connection refused")
        refused = server.refuses(connection=True)
        if refused is not None:
            # As psycopg tells of it: without the class, which libpq does not pass on while it connects.
            raise psycopg.OperationalError(f"connection failed: {refused}")
        self._server = server
        self._weather = weather
        self.number = server.next_number()
        self._session = server.sessions.take() if self.direct else None
        self.info = _Shown(self)
        self.closed = False
        server.links[self.number] = self

    @property
    def backend_pid(self) -> int:
        return self._session.backend_pid if self.direct and self._session is not None else -1

    @property
    def status(self) -> TransactionStatus:
        if self.closed:
            return TransactionStatus.UNKNOWN
        return TransactionStatus.IDLE if self._session is None else self._session.status

    def lose(self) -> None:
        """The wire is cut and the server has noticed it: what was not committed is undone, and all locks are free."""
        if self.closed:
            return
        self.closed = True
        self._server.links.pop(self.number, None)
        session, self._session = self._session, None
        if session is not None:
            if session.status != TransactionStatus.IDLE:
                session.send(b"rollback")
            if self.direct:
                session.send(b"select pg_advisory_unlock_all()")
            self._server.sessions.give_back(session)

    def _check(self) -> None:
        if not self._weather.reachable:
            self.lose()
        if self.closed:
            raise psycopg.OperationalError("the connection is lost")

    def _send(self, sql: bytes | str, params: Any) -> list[Any]:
        """The request arrives, takes effect, and the answer leaves. Either of the two may be lost on the way."""
        text = _bytes(sql)
        if text.startswith(_WHO):
            text = _WHO  # without settings: they are timeouts of real time, and the next link gets this session
        sent = self._weather.sent(text, params, self.number)
        if self._weather.loses_request():
            self.lose()
            sent.unknown()
            raise psycopg.OperationalError("the connection was lost before the statement arrived")
        session, self._session = self._session or self._server.sessions.take(), None
        try:
            self._refuse(session, text)
            rows = self._done(session, text, params)
        except psycopg.Error as error:
            if self.waits and isinstance(error, psycopg.errors.LockNotAvailable) and not _was_made_up(error):
                sent.waits()
            else:
                sent.failed(error)
            raise
        finally:
            if self.direct or session.status != TransactionStatus.IDLE:
                self._session = session
            else:
                self._server.sessions.give_back(session)
        if self._weather.loses_answer():
            self.lose()
            sent.lost(rows)
            raise psycopg.OperationalError("the connection was lost before the answer arrived")
        sent.answered(rows)
        return _in_order(text, rows)

    def _refuse(self, session: Session, text: bytes) -> None:
        """The server answers with an error and has done nothing. It is a real one: it breaks an open transaction."""
        refused = self._server.refuses(connection=False) if text not in (b"commit", b"rollback") else None
        if refused == "57014":
            # Whether somebody cancelled it is known by the server's words.
            session.send(b"select pg_cancel_backend(pg_backend_pid()), pg_sleep(60)")
        elif refused is not None:
            session.send(f"do $$ begin raise '{_MADE_UP}' using errcode = '{refused}'; end $$".encode())

    def _done(self, session: Session, text: bytes, params: Any) -> list[Any]:
        """A wait for a row, or for a table that somebody has locked, is a matter of virtual time. Any other is for a moment,
        as for the queue of notifications, which all databases of a server share: whoever plays another seed there must
        not be felt here.

        A lock that is not free is asked for again: inside a transaction that must not undo what went before.
        """
        if text in (b"commit", b"rollback"):
            # A commit waits for no row, but perhaps for the queue of notifications.
            return session.send(b"set local lock_timeout = 0;" + text)
        inside = session.status == TransactionStatus.INTRANS
        for _ in range(_MOMENTS):
            try:
                return session.execute(self._server.now(), len(self._server.ended_at), text, params, savepoint=inside)
            except psycopg.errors.LockNotAvailable as error:
                if inside:
                    session.send(b"rollback to savepoint world")
                # A wait for a table is told of by the function in which it happens; one for the queue by nobody.
                context = error.diag.context or ""
                if "tuple" in context or (self._server.locked and "function" in context):
                    # Without what the server adds: where in a statement it waited depends on what was planned before.
                    raise psycopg.errors.LockNotAvailable("canceling statement due to lock timeout") from None
        raise psycopg.errors.LockNotAvailable("a lock that is none of a row was not free for long")


class BlockingWire(_Link):
    """The heartbeat's connection. It answers at the instant it is asked: the heart has a thread of its own."""

    direct = True

    def execute(self, sql: bytes | str, params: Any = None, **_: Any) -> _Rows:
        self._check()
        return _Rows(self._send(sql, params))

    def close(self) -> None:
        self.lose()


class AsyncWire(_Link):
    waits = True

    async def execute(self, sql: bytes | str, params: Any = None, **_: Any) -> _AsyncRows:
        await asyncio.sleep(self._weather.travel_seconds())
        give_up = asyncio.get_running_loop().time() + _LOCK_PATIENCE_SECONDS
        if self._listens(sql):
            return _AsyncRows([])
        while True:
            self._check()
            try:
                rows = self._send(sql, params)
            except psycopg.errors.LockNotAvailable as error:
                if _was_made_up(error):
                    raise
                if asyncio.get_running_loop().time() > give_up:
                    self._weather.sent(_bytes(sql), params, self.number).failed(error)
                    raise
                await self._wait_for_lock(give_up)
            else:
                await asyncio.sleep(self._weather.travel_seconds())
                self._check()
                return _AsyncRows(rows)

    async def _wait_for_lock(self, give_up: float) -> None:
        """Until it may be free. A table that is locked is asked for again once it is not: each try takes real time."""
        loop, locked = asyncio.get_running_loop(), self._server.locked
        self._server.waited += locked
        await asyncio.sleep(_LOCK_PAUSE_SECONDS)
        while locked and self._server.locked and loop.time() <= give_up:  # noqa: ASYNC110 - in virtual time
            await asyncio.sleep(_LOCK_PAUSE_SECONDS)

    def _listens(self, sql: bytes | str) -> bool:
        """The notifier asks whether the session is its own, and then listens. On hosts behind a pooler it is not."""
        if sql == "select pg_backend_pid()" and self._weather.listens and self._session is None and not self.closed:
            self._session, self.direct = self._server.sessions.take(), True
        if sql == "listen faultline":
            self._check()
            self.hints = asyncio.Queue()
        return sql == "listen faultline"

    async def notifies(self, *, timeout: float) -> AsyncIterator[Hint]:  # noqa: ASYNC109 - psycopg's face
        """Hints. Only those that the world makes up come: the true ones are all lost."""
        loop, hints = asyncio.get_running_loop(), self.hints
        give_up = loop.time() + timeout
        while hints is not None and loop.time() < give_up:
            self._check()
            try:
                async with asyncio.timeout_at(give_up):
                    hint = await hints.get()
            except TimeoutError:
                return
            yield hint

    def cursor(self, **_: Any) -> _AsyncCursor:
        return _AsyncCursor(self)

    def transaction(self) -> _Transaction:
        return _Transaction(self)

    async def close(self) -> None:
        self.lose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class _AsyncCursor:
    def __init__(self, wire: AsyncWire) -> None:
        self._wire = wire
        self._rows = _AsyncRows([])

    async def execute(self, sql: bytes | str, params: Any = None, **_: Any) -> Self:
        self._rows = await self._wire.execute(sql, params)
        return self

    async def fetchall(self) -> list[Any]:
        return self._rows.rows

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None: ...


class _Transaction:
    """A transaction of several statements, as psycopg makes one."""

    def __init__(self, wire: AsyncWire) -> None:
        self._wire = wire

    async def __aenter__(self) -> None:
        await self._wire.execute("begin")

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if not self._wire.closed:
            await self._wire.execute("commit" if kind is None else "rollback")


def _bytes(sql: bytes | str) -> bytes:
    return sql if isinstance(sql, bytes) else sql.encode()


def _in_order(text: bytes, rows: list[Any]) -> list[Any]:
    """Schedules that are due at the same time come in the order in which they lie there, and that depends on what else the
    server does. Whoever is answered goes by this order.
    """
    return sorted(rows, key=lambda row: (row[2] or row[3], row[0])) if _DUE in text else rows


def _was_made_up(error: psycopg.Error) -> bool:
    """The storm refused it. Then it is final, whatever its class: nobody waits for a lock."""
    return _MADE_UP in str(error)
