"""The invariants' verdict. Looking at every job is costly, so all who ask within half a minute get the same answer."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from faultline.store import invariants
from faultline.web.shapes import Invariant, Verdict

if TYPE_CHECKING:
    from faultline.web.service import Service

_GOOD_SECONDS = 30.0


class Verdicts:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._asking = asyncio.Lock()
        self._last: tuple[float, Verdict] | None = None

    async def latest(self) -> Verdict:
        async with self._asking:
            now = self._service.host.monotonic()
            if self._last is None or now - self._last[0] > _GOOD_SECONDS:
                self._last = (now, await self._check())
            return self._last[1]

    async def _check(self) -> Verdict:
        began = self._service.host.monotonic()
        judged = []
        for name in invariants.names():
            broken = await self._service.audit.run(invariants.invariant(name))
            rows = [] if broken is None else [[str(value) for value in row] for row in broken.rows]
            judged.append(Invariant(name=name, holds=broken is None, rows=rows))
        return Verdict(
            holds=all(one.holds for one in judged),
            checked_at=datetime.fromtimestamp(self._service.host.seconds(), UTC),
            took_seconds=self._service.host.monotonic() - began,
            invariants=judged,
        )
