"""Whether the database can be used, for everybody who asks within a second: a flood of questions is one to the database."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from faultline.core.errors import FaultlineError
from faultline.store import overview
from faultline.store.facts import schema_is_right
from faultline.web.problems import problem_of

if TYPE_CHECKING:
    from faultline.web.service import Service

_GOOD_SECONDS = 1.0


class Look(NamedTuple):
    at: float
    #: Why it cannot; None: it can.
    fault: str | None
    workers_alive: int | None


class Readiness:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._asking = asyncio.Lock()
        self._last: Look | None = None

    async def latest(self) -> Look:
        async with self._asking:
            # Counted from when it was answered: while the database is away, that takes longer than an answer is good.
            if self._last is None or self._service.host.monotonic() - self._last.at > _GOOD_SECONDS:
                self._last = await self._look()
            return self._last

    async def _look(self) -> Look:
        read = self._service.read
        try:
            await read.run(schema_is_right())
            alive = sum(line.alive for line in await read.run(overview.workers()))
        except FaultlineError as error:
            problem = problem_of(error)
            return Look(self._service.host.monotonic(), f"{problem.code}: {problem.detail}", None)
        return Look(self._service.host.monotonic(), None, alive)
