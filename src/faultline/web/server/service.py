"""One server: its databases, limits and state. Everything that requests share is here.

`service.read`, `service.enqueue` and `service.operate` are async databases, each in the role that may do no more than that:
`await service.enqueue.run(...)`. What a caller reads is read with their share: `await service.read_for(caller).run(...)`. A
route gets the service with `service_of(request)`.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING

from faultline.web.auth.connection_share import Shares
from faultline.web.auth.keys import Keys
from faultline.web.auth.rate_limit import Bucket
from faultline.web.auth.sessions import Sessions
from faultline.web.live.changes import Changes
from faultline.web.live.stream_readers import Followers
from faultline.web.server.databases import Databases
from faultline.web.server.invariant_cache import Verdicts
from faultline.web.server.metrics import Numbers
from faultline.web.server.readiness import Readiness

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection

    from faultline.core.host import Host
    from faultline.web.auth.caller import Caller
    from faultline.web.auth.connection_share import Share
    from faultline.web.server.databases import Limits


class Service(Databases):
    """What the routes of one application share."""

    def __init__(
        self,
        dsn: str,
        *,
        limits: Limits | None = None,
        loopback_only: bool = False,
        metrics_at: tuple[str, int] | None = None,
        host: Host | None = None,
        visitors: bool = False,
    ) -> None:
        super().__init__(dsn, limits, host)
        #: Only this machine can reach the server. Only then may there be no keys.
        self.loopback_only = loopback_only
        #: It is mounted in a program, which says who is calling.
        self.visitors = visitors
        self.verdicts = Verdicts(self)
        self.readiness = Readiness(self)
        self.keys = Keys(self, loopback_only=loopback_only)
        self.bucket = Bucket(self.limits.requests_per_second, self.limits.requests_burst, self.host.monotonic)
        self.sessions = Sessions(self.host.monotonic)
        #: The form token for this machine, while there are no keys and so no sessions.
        self.loopback_csrf = secrets.token_urlsafe(32)
        self.shares = Shares(self, self.readiness)
        self.changes = Changes(self, self.shares)
        self.followers = Followers(self.limits)
        self.numbers = Numbers(metrics_at)
        self._background: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Start even if the database does not work: the log, /ready and every request report it until it is repaired,
        without a restart.
        """
        if not await self.take_roles():
            self._background.append(asyncio.create_task(self._change_roles()))
        self.numbers.open(self.read.dsn, self.audit.dsn)
        self._background += [asyncio.create_task(self.changes.run()), asyncio.create_task(self.readiness.watch())]

    async def close(self) -> None:
        for task in self._background:
            task.cancel()
            await asyncio.wait([task])
        await asyncio.to_thread(self.numbers.close)
        for database in self.all():
            await database.close()

    def read_for(self, caller: Caller) -> Share:
        return self.shares.of(caller)

    async def _change_roles(self) -> None:
        before = await self.take_roles_later()
        if before:
            await asyncio.to_thread(self.numbers.close)
            self.numbers.open(self.read.dsn, self.audit.dsn)
        for database in before:
            await database.close()


def service_of(connection: HTTPConnection) -> Service:
    service: Service = connection.app.state.service
    return service
