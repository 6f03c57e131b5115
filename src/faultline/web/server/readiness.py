"""Whether the database can be used. All requests within a second share one check.

It is also checked in the background, so that an error can say since when the database is away.
"""

from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

import psycopg

from faultline.core.errors import DatabaseUnavailable, FaultlineError
from faultline.store.database_facts import takes_writes
from faultline.store.reads import overview
from faultline.store.verbs import access
from faultline.web.server.problems import AWAY_SINCE, Problem, problem_of

if TYPE_CHECKING:
    from faultline.web.server.databases import Databases

_GOOD_SECONDS = 1.0
_WATCH_SECONDS = 2.0


class Look(NamedTuple):
    at: float
    #: Why not; None: it can.
    fault: Problem | None
    workers_alive: int | None
    #: Whether it is read-only, as a standby.
    read_only: bool = False


class Readiness:
    def __init__(self, databases: Databases) -> None:
        self._databases = databases
        self._asking = asyncio.Lock()
        self._last: Look | None = None
        #: When the database last answered, or when the checks began.
        self._answered_at = self._now()

    async def watch(self) -> None:
        """Runs as long as the server."""
        while True:
            with contextlib.suppress(Exception):  # /ready shows it
                await self.latest()
            await asyncio.sleep(_WATCH_SECONDS)

    @property
    def fault(self) -> Problem | None:
        """Why the database could not be used at the last check."""
        return None if self._last is None else self._last.fault

    def with_time(self, problem: Problem) -> Problem:
        """The problem for an outage, with the time since when."""
        if problem.code == DatabaseUnavailable.__name__:
            since = f"{self._answered_at:%Y-%m-%d %H:%M:%S} UTC"
            problem.detail = f"The database has not answered since {since}; nothing was written."
            problem.headers[AWAY_SINCE] = since
        return problem

    async def latest(self) -> Look:
        async with self._asking:
            # Counted from the answer: in an outage a check takes longer than its result is valid.
            if self._last is None or self._databases.host.monotonic() - self._last.at > _GOOD_SECONDS:
                self._last = await self._look()
            return self._last

    async def _look(self) -> Look:
        read, enqueue, operate, _ = self._databases.all()
        try:
            # In each role, and whether a key can be looked up: all that a request needs.
            writable = [await database.run(takes_writes()) for database in (read, enqueue, operate)]
            await read.run(access.find(b""))
            alive = sum(line.alive for line in await read.run(overview.workers()))
        except (FaultlineError, psycopg.Error) as error:
            return Look(self._databases.host.monotonic(), self.with_time(problem_of(error)), None)
        self._answered_at = self._now()
        return Look(self._databases.host.monotonic(), None, alive, read_only=not all(writable))

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._databases.host.seconds(), UTC)
