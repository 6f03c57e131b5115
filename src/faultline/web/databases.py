"""The databases of one server, each in the role that may do no more: `read`, `enqueue`, `operate`; and `audit`, which looks
at every job and takes its time. All parts of the service stand on this, and it on none of them.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from faultline.core import events
from faultline.core.database_time import DatabaseTime
from faultline.core.errors import DatabaseUnavailable
from faultline.core.host import Host
from faultline.core.ids import Ids
from faultline.store import roles, verbs
from faultline.store.async_database import AsyncDatabase
from faultline.store.reads import listing, overview
from faultline.store.verbs import access
from faultline.web.beginning import answer

if TYPE_CHECKING:
    from faultline.store.statement import Statement

_AUDIT_SECONDS = 120.0
_REACH_SECONDS = 1.0
#: What is mostly asked for. A submission of no jobs writes nothing, and takes both ways: with ids of ours, and with keys.
_READS: list[Statement[Any]] = [listing.jobs(listing.Wanted(), page_jobs=1), overview.queues(), access.exist()]
_SUBMISSIONS: list[Statement[Any]] = [verbs.enqueue_many([], Ids()), verbs.enqueue_many([])]


@dataclass(frozen=True, slots=True)
class Limits:
    """What one request, one caller and one server may take. Each has an answer of its own when it is reached."""

    body_bytes_max: int = 4 * 1024 * 1024
    #: How long a request may take to come: its head, and then its body.
    request_seconds: float = 20.0
    statement_seconds: float = 10.0
    #: How long a connection to the database is waited for.
    connect_seconds: float = 3.0
    #: Before anybody is answered, so many connections of each role are opened and have run what is mostly asked for, and
    #: templates and /openapi.json are made. 0: nothing is done before it is needed.
    connections_ready: int = 4
    #: Per caller: so many requests a second in the long run, and so many at once.
    requests_per_second: float = 1000.0
    requests_burst: int = 2000
    #: What one caller may read at once, of the ten connections that all read with. More waits, as for a connection.
    reads_caller_max: int = 5
    #: How long it may take until a key that was revoked is refused.
    key_seconds: float = 2.0
    #: Live streams, on the whole server.
    streams_max: int = 200
    #: And of one caller: nobody takes all of them.
    streams_caller_max: int = 50
    #: A stream ends by itself after this, and whoever still watches takes it up again: at another server, it may be.
    stream_seconds: float = 3600.0
    #: A stream gives a sign of life this often, and is asked this often whether its key is still good.
    heartbeat_seconds: float = 15.0


class Databases:
    def __init__(self, dsn: str, limits: Limits | None = None, host: Host | None = None) -> None:
        self.dsn = dsn
        self.limits = limits or Limits()
        self.host = host or Host()
        self._time = DatabaseTime(self.host.monotonic, self.host.seconds)
        self._ids = Ids(self._time.seconds, self.host.chance)
        self.read = self.enqueue = self.operate = self.audit = self._database(dsn)

    async def take_roles(self) -> bool:
        """Take the roles that exist, and be quick for the first who comes. False: the database did not say which do; they
        are assumed until it does (`take_roles_later`).
        """
        try:
            self._use(await answer(self._taken()))
        except DatabaseUnavailable as error:
            events.emit("database_unavailable", error=str(error))
            self._use(self._assumed())
            return False
        await self._warm_all()
        return True

    async def take_roles_later(self) -> list[AsyncDatabase]:
        """The roles were assumed while nobody could be asked. Where they cannot be taken, go on without, as at a start.

        Returns the databases that are no longer used, if it has come to that. Whoever uses them closes them.
        """
        while True:
            await asyncio.sleep(_REACH_SECONDS)
            with contextlib.suppress(DatabaseUnavailable):
                found = await answer(self._taken())
                break
        if found == self._assumed():
            return []
        before = self.all()
        self._use(found)
        return before

    def all(self) -> list[AsyncDatabase]:
        return [self.read, self.enqueue, self.operate, self.audit]

    async def ids(self) -> Ids:
        """Ids of new jobs, in the database's time: a submission whose answer is lost can be sent again."""
        await self.enqueue.facts_and_time()
        return self._ids

    def _roles(self) -> list[tuple[str, float]]:
        seconds = self.limits.statement_seconds
        known = [(f"faultline_{name}", seconds) for name in ("viewer", "producer", "operator")]
        return [*known, ("faultline_viewer", _AUDIT_SECONDS)]

    async def _taken(self) -> list[str]:
        return [await roles.dsn_as(self.dsn, role, statement_seconds=seconds) for role, seconds in self._roles()]

    def _assumed(self) -> list[str]:
        return [roles.assumed(self.dsn, role, statement_seconds=seconds) for role, seconds in self._roles()]

    def _use(self, dsns: list[str]) -> None:
        self.read, self.enqueue, self.operate = map(self._database, dsns[:3])
        self.audit = self._database(dsns[3], answer_seconds=_AUDIT_SECONDS)

    async def _warm_all(self) -> None:
        """Nobody is answered before this: what is slow the first time is done when a crowd comes."""
        asked: tuple[tuple[AsyncDatabase, list[Statement[Any]]], ...] = (
            (self.read, _READS),
            (self.enqueue, _SUBMISSIONS),
            (self.operate, []),
        )
        tried = (answer(self._warm(database, statements)) for database, statements in asked)
        for failed in await asyncio.gather(*tried, return_exceptions=True):
            if isinstance(failed, DatabaseUnavailable):
                events.emit("database_unavailable", error=str(failed))
            elif isinstance(failed, BaseException):
                raise failed

    async def _warm(self, database: AsyncDatabase, statements: list[Statement[Any]]) -> None:
        """Have some connections at hand that have run these statements, and so have compiled and planned them before."""
        await database.facts()
        # At once: one after the other, the second would take the connection of the first.
        tried = (database.run_all(statements) for _ in range(self.limits.connections_ready))
        for failed in await asyncio.gather(*tried, return_exceptions=True):
            if isinstance(failed, BaseException):
                raise failed

    def _database(self, dsn: str, *, answer_seconds: float | None = None) -> AsyncDatabase:
        database = AsyncDatabase(
            dsn,
            connections_max=10,
            # The server gives up first, and says so.
            answer_seconds=(answer_seconds or self.limits.statement_seconds) + 5,
            connect_seconds=self.limits.connect_seconds,
            host=self.host,
        )
        database.time = self._time
        return database
