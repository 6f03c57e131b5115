"""One server: its databases, its limits, and what it remembers. Everything that requests share stands here.

`service.read`, `service.enqueue` and `service.operate` are async databases, each in the role that may do no more than that:
`await service.enqueue.run(...)`. What a caller reads is read with their share: `await service.read_for(caller).run(...)`. A
route gets the service with `service_of(request)`.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

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
from faultline.web.bucket import Bucket
from faultline.web.changes import Changes
from faultline.web.keys import Keys
from faultline.web.numbers import Numbers
from faultline.web.readiness import Readiness
from faultline.web.sessions import Sessions
from faultline.web.share import Share
from faultline.web.verdicts import Verdicts

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection

    from faultline.store.statement import Statement
    from faultline.web.access import Caller

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


class Service:
    """What the routes of one application share."""

    def __init__(
        self,
        dsn: str,
        *,
        limits: Limits | None = None,
        loopback_only: bool = False,
        metrics_at: tuple[str, int] | None = None,
        host: Host | None = None,
    ) -> None:
        self.dsn = dsn
        self.limits = limits or Limits()
        #: Whether nobody but this machine can reach us. Only then may there be no keys at all.
        self.loopback_only = loopback_only
        self.host = host or Host()
        self._time = DatabaseTime(self.host.monotonic, self.host.seconds)
        self._ids = Ids(self._time.seconds, self.host.chance)
        self.read = self.enqueue = self.operate = self.audit = self._database(dsn)
        self.verdicts = Verdicts(self)
        self.readiness = Readiness(self)
        self.keys = Keys(self)
        self.bucket = Bucket(self.limits.requests_per_second, self.limits.requests_burst, self.host.monotonic)
        self.sessions = Sessions(self.host.monotonic)
        #: The form token of everybody on this machine, while there are no keys and so no sessions.
        self.loopback_csrf = secrets.token_urlsafe(32)
        self.changes = Changes(self)
        self.numbers = Numbers(metrics_at)
        #: By caller, for as long as they read.
        self._shares: WeakValueDictionary[str, Share] = WeakValueDictionary()
        self._background: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Take the roles that exist, and be quick for the first who comes.

        What is wrong with the database does not keep us from answering: the log, /ready and every request tell of it until
        it is right, and nobody has to start us again.
        """
        try:
            self._use(await answer(self._taken()))
        except DatabaseUnavailable as error:
            events.emit("database_unavailable", error=str(error))
            assumed = [roles.assumed(self.dsn, role, statement_seconds=seconds) for role, seconds in self._roles()]
            self._use(assumed)
            self._background.append(asyncio.create_task(self._take_roles_later(assumed)))
        else:
            await self._warm_all()
        self.numbers.open(self.read.dsn, self.audit.dsn)
        self._background += [asyncio.create_task(self.changes.run()), asyncio.create_task(self.readiness.watch())]

    async def close(self) -> None:
        for task in self._background:
            task.cancel()
            await asyncio.wait([task])
        await asyncio.to_thread(self.numbers.close)
        for database in (self.read, self.enqueue, self.operate, self.audit):
            await database.close()

    def _roles(self) -> list[tuple[str, float]]:
        """Who reads, enqueues and operates; and who looks at every job, which takes its time and must not hold up others."""
        seconds = self.limits.statement_seconds
        known = [(f"faultline_{name}", seconds) for name in ("viewer", "producer", "operator")]
        return [*known, ("faultline_viewer", _AUDIT_SECONDS)]

    async def _taken(self) -> list[str]:
        return [await roles.dsn_as(self.dsn, role, statement_seconds=seconds) for role, seconds in self._roles()]

    def _use(self, dsns: list[str]) -> None:
        self.read, self.enqueue, self.operate = map(self._database, dsns[:3])
        self.audit = self._database(dsns[3], answer_seconds=_AUDIT_SECONDS)

    async def _take_roles_later(self, assumed: list[str]) -> None:
        """The roles were assumed while nobody could be asked. Where they cannot be taken, go on without, as at a start."""
        while True:
            await asyncio.sleep(_REACH_SECONDS)
            with contextlib.suppress(DatabaseUnavailable):
                found = await answer(self._taken())
                break
        if found == assumed:
            return
        before = (self.read, self.enqueue, self.operate, self.audit)
        self._use(found)
        await asyncio.to_thread(self.numbers.close)
        self.numbers.open(self.read.dsn, self.audit.dsn)
        for database in before:
            await database.close()

    def read_for(self, caller: Caller) -> Share:
        share = self._shares.get(caller.id)
        if share is None:
            share = self._shares[caller.id] = Share(self)
        return share

    async def ids(self) -> Ids:
        """Ids of new jobs, in the database's time: a submission whose answer is lost can be sent again."""
        await self.enqueue.facts_and_time()
        return self._ids

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


def service_of(connection: HTTPConnection) -> Service:
    service: Service = connection.app.state.service
    return service
