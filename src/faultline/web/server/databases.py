"""The databases of one server, each in the role with the least rights: `read`, `enqueue`, `operate`; and `audit`, which
reads every job and takes long.
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
from faultline.store import verbs
from faultline.store.async_database import AsyncDatabase
from faultline.store.connection import roles
from faultline.store.reads import listing, overview
from faultline.store.verbs import access
from faultline.web.server.startup_checks import answer

if TYPE_CHECKING:
    from faultline.store.statement import Statement

_AUDIT_SECONDS = 120.0
_REACH_SECONDS = 1.0
#: The most frequent statements. A submission of no jobs writes nothing and warms up documents: with our ids, and with keys.
_READS: list[Statement[Any]] = [listing.jobs(listing.Wanted(), page_jobs=1), overview.queues(), access.exist()]
_SUBMISSIONS: list[Statement[Any]] = [verbs.enqueue_many([], Ids()), verbs.enqueue_many([])]


@dataclass(frozen=True, slots=True)
class Limits:
    """What one request, one caller and one server may use. Each limit has its own error."""

    body_bytes_max: int = 4 * 1024 * 1024
    #: How long the head of a request may take to arrive, and then its body.
    request_seconds: float = 20.0
    statement_seconds: float = 10.0
    #: How long to wait for a database connection.
    connect_seconds: float = 3.0
    #: How many connections of each role to open and warm up before listening, and whether to build templates and
    #: /openapi.json then. 0: none.
    connections_ready: int = 4
    #: Per caller: requests per second in the long run, and at once.
    requests_per_second: float = 1000.0
    requests_burst: int = 2000
    #: How many of the ten reading connections one caller may use at once. Further reads wait.
    reads_caller_max: int = 5
    #: How long a revoked key may still be accepted.
    key_seconds: float = 2.0
    #: Live streams, on the whole server.
    streams_max: int = 200
    #: Live streams of one caller.
    streams_caller_max: int = 50
    #: A stream ends after this, and its client reconnects, perhaps to another server.
    stream_seconds: float = 3600.0
    #: How often a stream sends a keep-alive and checks its key.
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
        """Use the roles that exist, and warm up. False: the database did not answer; the roles are assumed until it does
        (`take_roles_later`).
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
        """The roles were assumed during an outage. If they cannot be used, go on without them, as at a start.

        Returns the databases that are no longer used, which the caller closes.
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
        """Runs before the server listens: the first requests must not wait for what is slow only once."""
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
        """Open connections and run these statements on them, so that they are parsed and planned."""
        await database.facts()
        # At the same time: one after the other, all would use the same connection.
        tried = (database.run_all(statements) for _ in range(self.limits.connections_ready))
        for failed in await asyncio.gather(*tried, return_exceptions=True):
            if isinstance(failed, BaseException):
                raise failed

    def _database(self, dsn: str, *, answer_seconds: float | None = None) -> AsyncDatabase:
        database = AsyncDatabase(
            dsn,
            connections_max=10,
            # The server's timeout comes first, with its own error.
            answer_seconds=(answer_seconds or self.limits.statement_seconds) + 5,
            connect_seconds=self.limits.connect_seconds,
            host=self.host,
        )
        database.time = self._time
        return database
