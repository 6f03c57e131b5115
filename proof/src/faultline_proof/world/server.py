"""The real database behind all wires of the simulated world, and its real sessions."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import psycopg
from psycopg.adapt import Transformer
from psycopg.pq import ExecStatus, TransactionStatus

if TYPE_CHECKING:
    import asyncio
    import random
    from collections.abc import Callable

#: Nobody else is at work while a statement runs, so a lock that is not free now is held across virtual time.
_LOCK_MILLISECONDS = 5
_CLAIM = b"faultline.claim("


class Link(Protocol):
    """A wire, as the server knows it."""

    #: What was notified and not yet read, of one that listens.
    hints: asyncio.Queue[Hint] | None

    def lose(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Hint:
    """A notification."""

    payload: str


class Session:
    """A real session. It is used for one link after the other, and from one seed to the next: a new one has to learn every
    function anew, which would be half of what a seed costs.
    """

    def __init__(self, dsn: str) -> None:
        options = f"-c lock_timeout={_LOCK_MILLISECONDS} -c statement_timeout=30s -c synchronous_commit=off"
        self._connection = psycopg.connect(dsn, autocommit=True, options=options)
        self._cursor = psycopg.ClientCursor(self._connection)
        self._wire = self._connection.pgconn
        self.backend_pid = self._connection.info.backend_pid

    @property
    def status(self) -> TransactionStatus:
        return TransactionStatus(self._wire.transaction_status)

    def execute(self, now: str, run: int, sql: bytes, params: Any, *, savepoint: bool) -> list[Any]:
        """Set the time and the run of the server, and run a statement, in one message: a second round trip would double
        what a seed costs.
        """
        text = sql if params is None else self._cursor.mogrify(sql, params).encode()
        before = b"savepoint world;" if savepoint else b""
        world = b"set faultline_world.now = '%s';set faultline_world.run = '%d';" % (now.encode(), run)
        if _CLAIM in sql:
            # Where groups and others wait, a coin decides who gets the odd job. It falls by the time.
            world += b"select setseed(%f);" % (zlib.crc32(now.encode()) / 2**32)
        return self.send(before + world + text)

    def send(self, text: bytes) -> list[Any]:
        """Wait for the answer inside libpq, and read it: nobody else runs meanwhile, so there is nothing to be awaited."""
        result = self._wire.exec_(text)
        if result.status == ExecStatus.TUPLES_OK:
            reader = Transformer(self._connection)
            reader.set_pgresult(result)
            return reader.load_rows(0, result.ntuples, tuple)
        if result.status != ExecStatus.COMMAND_OK:
            raise psycopg.errors.error_from_result(result)
        return []


class Sessions:
    """Real sessions that are not in use, and as many new ones as are wanted."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._spare: list[Session] = []

    def take(self) -> Session:
        return self._spare.pop() if self._spare else Session(self._dsn)

    def give_back(self, session: Session) -> None:
        self._spare.append(session)


@dataclass(frozen=True, slots=True)
class Refusal:
    """For a while the server answers a share of all statements, or of all connections, with an error of this class."""

    sqlstate: str
    share: float
    connections: bool = False


class Server:
    """The real database behind all wires. `now` is virtual time; `up` is false while it is being restarted."""

    def __init__(self, sessions: Sessions, now: Callable[[], str], chance: random.Random) -> None:
        self.sessions = sessions
        self.now = now
        self._chance = chance
        self.up = True
        #: From which line of the record on its clock was set forward, and by how much.
        self.clock_steps: list[tuple[int, float]] = []
        #: When all sessions ended, by virtual time: in a restart, or when a standby was promoted.
        self.ended_at: list[str] = []
        self.refusal: Refusal | None = None
        #: How many statements and connections were refused, and how many statements waited for a locked table.
        self.refused = self.waited = 0
        self._locker: Session | None = None
        #: In the order in which they were made: a restart cuts them in that order.
        self.links: dict[int, Link] = {}
        self._links_made = 0

    def ahead_seconds(self, line: float = math.inf) -> float:
        """How far its clock is ahead of virtual time, at this line of the record. Default: now."""
        return sum(seconds for since, seconds in self.clock_steps if since <= line)

    def next_number(self) -> int:
        self._links_made += 1
        return self._links_made

    def restart(self) -> None:
        """Every session ends at once."""
        self.up = False
        self.ended_at.append(self.now())
        self.unlock()
        self.cut()

    def refuses(self, *, connection: bool) -> str | None:
        """The class of the error with which this statement or connection is answered, if it is."""
        refusal = self.refusal
        if refusal is None or refusal.connections != connection or self._chance.random() >= refusal.share:
            return None
        self.refused += 1
        return refusal.sqlstate

    @property
    def locked(self) -> bool:
        """Somebody holds a lock on a whole table."""
        return self._locker is not None

    def lock(self, table: str, mode: str) -> bool:
        """Lock a table for real. False: somebody is writing to it just now."""
        session = self.sessions.take()
        try:
            session.send(f"begin; lock table {table} in {mode} mode".encode())
        except psycopg.errors.LockNotAvailable:
            session.send(b"rollback")
            self.sessions.give_back(session)
            return False
        self._locker = session
        return True

    def unlock(self) -> None:
        session, self._locker = self._locker, None
        if session is not None:
            session.send(b"rollback")
            self.sessions.give_back(session)

    def notify(self, payload: str) -> int:
        """Tell all who listen. Answers with how many there are."""
        listeners = [link for link in self.links.values() if link.hints is not None]
        for link in listeners:
            assert link.hints is not None  # noqa: S101
            link.hints.put_nowait(Hint(payload))
        return len(listeners)

    def cut(self) -> None:
        for link in list(self.links.values()):
            link.lose()
