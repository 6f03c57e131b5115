"""The verdict on the invariants. Reading every job is expensive, so all requests within half a minute share one check."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from faultline.core import events
from faultline.core.errors import DatabaseUnavailable
from faultline.store.reads import invariants
from faultline.web.api.shapes import Invariant, Verdict

if TYPE_CHECKING:
    from faultline.web.server.databases import Databases

_GOOD_SECONDS = 30.0


class Verdicts:
    def __init__(self, databases: Databases) -> None:
        self._databases = databases
        self._checking: asyncio.Task[Verdict] | None = None
        #: When it ended: a check may take longer than its result is valid.
        self._last: tuple[float, Verdict] | None = None

    async def latest(self) -> Verdict:
        """Join a check that is running. A request that is cancelled does not cancel it for the others."""
        if self._last is not None and self._databases.host.monotonic() - self._last[0] <= _GOOD_SECONDS:
            return self._last[1]
        if self._checking is None:
            self._checking = asyncio.create_task(self._check())
            self._checking.add_done_callback(self._done)
        return await asyncio.shield(self._checking)

    def _done(self, check: asyncio.Task[Verdict]) -> None:
        self._checking = None
        if not check.cancelled() and check.exception() is None:
            self._last = (self._databases.host.monotonic(), check.result())

    async def _check(self) -> Verdict:
        began = self._databases.host.monotonic()
        judged = [await self._judge(name) for name in invariants.names()]
        found = {one.holds for one in judged}
        return Verdict(
            holds=False if False in found else None if None in found else True,
            checked_at=datetime.fromtimestamp(self._databases.host.seconds(), UTC),
            took_seconds=self._databases.host.monotonic() - began,
            invariants=judged,
        )

    async def _judge(self, name: str) -> Invariant:
        """Check each separately: one that takes too long must not hide that another is broken."""
        try:
            broken = await self._databases.audit.run(invariants.invariant(name))
        except DatabaseUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - it is shown
            events.emit("invariants_unchecked", error=f"{name}: {error}")
            return Invariant(
                name=name, holds=None, rows=[], unchecked=(str(error).splitlines() or [type(error).__name__])[0]
            )
        rows = [] if broken is None else [[str(value) for value in row] for row in broken.rows]
        return Invariant(name=name, holds=broken is None, rows=rows)
