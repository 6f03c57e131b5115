"""Whether the database is right: every invariant, checked in the background while somebody looks, never more than now and then.

Checking reads whole tables, so no page waits for it, and a check that takes long is made less often.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from faultline.core.errors import FaultlineError
from faultline.store import invariants, views

if TYPE_CHECKING:
    from datetime import datetime

    from starlette.requests import Request

    from faultline.store.invariants import Violation
    from faultline.web.service import Service

_EVERY_SECONDS = 60.0
#: A check takes at most this share of the time.
_SHARE = 0.02


@dataclass(frozen=True, slots=True)
class Verdict:
    at: datetime
    seconds: float
    checked: int
    violations: list[Violation]
    #: Invariants that could not be checked, and why.
    unchecked: dict[str, str]

    @property
    def holds(self) -> bool:
        return not self.violations and not self.unchecked


class Checker:
    """One check at a time. The last verdict stands until the next."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._task: asyncio.Task[None] | None = None
        self._due = 0.0
        self.verdict: Verdict | None = None

    def look(self) -> Verdict | None:
        """The last verdict; None: the first check is under way. Starts the next one when it is time."""
        if self._task is None and self._service.host.monotonic() >= self._due:
            self._task = asyncio.create_task(self._run())
        return self.verdict

    async def _run(self) -> None:
        try:
            self.verdict = await self._check()
        except FaultlineError:
            pass  # The database is away, which the page says by itself; the last verdict carries its time.
        finally:
            cost = self.verdict.seconds if self.verdict else 0.0
            self._due = self._service.host.monotonic() + max(_EVERY_SECONDS, cost / _SHARE)
            self._task = None

    async def _check(self) -> Verdict:
        monotonic = self._service.host.monotonic
        started = monotonic()
        violations, unchecked = [], {}
        for name in invariants.names():
            try:
                found = await self._service.read.run(invariants.invariant(name))
            except FaultlineError as error:
                unchecked[name] = str(error)
            else:
                violations += [found] if found else []
        now = await self._service.read.run(views.clock())
        return Verdict(now, monotonic() - started, len(invariants.names()) - len(unchecked), violations, unchecked)


def checker_of(request: Request) -> Checker:
    """The one of this server."""
    state = request.app.state
    if not hasattr(state, "checker"):
        state.checker = Checker(state.service)
    checker: Checker = state.checker
    return checker
