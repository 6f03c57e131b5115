"""The last verdict on the invariants, renewed in the background while pages are requested: no page waits for it.

A check reads whole tables, so it is done rarely, and more rarely the longer it takes.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from faultline.core.errors import FaultlineError

if TYPE_CHECKING:
    from starlette.requests import Request

    from faultline.web.api.shapes import Verdict
    from faultline.web.server.service import Service

_EVERY_SECONDS = 60.0
#: A check takes at most this share of the time.
_SHARE = 0.02


class LastVerdict:
    """One check at a time. A verdict is shown until the next."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._checking: asyncio.Task[None] | None = None
        self._due = 0.0
        self._verdict: Verdict | None = None

    def look(self) -> Verdict | None:
        """None: the first check is running. Starts the next one when it is due."""
        if self._checking is None and self._service.host.monotonic() >= self._due:
            self._checking = asyncio.create_task(self._check())
        return self._verdict

    async def _check(self) -> None:
        try:
            self._verdict = await self._service.verdicts.latest()
        except FaultlineError:
            pass  # The database is away or too slow: the last verdict stays, with its time.
        finally:
            cost = self._verdict.took_seconds if self._verdict else 0.0
            self._due = self._service.host.monotonic() + max(_EVERY_SECONDS, cost / _SHARE)
            self._checking = None


def last_verdict(request: Request) -> LastVerdict:
    """The one of this server."""
    state = request.app.state
    if not hasattr(state, "last_verdict"):
        state.last_verdict = LastVerdict(state.service)
    found: LastVerdict = state.last_verdict
    return found
