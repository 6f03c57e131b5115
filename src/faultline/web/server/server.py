"""Run the application. It is reachable from other machines only if keys protect it, and ends live streams when it stops."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import uvicorn

from faultline.core.errors import DatabaseUnavailable, SetupError
from faultline.store.async_database import AsyncDatabase
from faultline.store.verbs import access
from faultline.web.app import create_app
from faultline.web.auth.access import is_loopback
from faultline.web.server.databases import Limits
from faultline.web.server.http_protocol import Wire
from faultline.web.server.startup_checks import answer, run_apart
from faultline.worker.process import collect_less_often

if TYPE_CHECKING:
    from faultline.web.auth.proxies import Proxies

_GRACE_SECONDS = 10
#: uvicorn's ticks, a tenth of a second each.
_TICKS = 10


class Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        #: Idle connections: the last request, and since when.
        self._silent: dict[Any, tuple[Any, float]] = {}

    async def on_tick(self, counter: int) -> bool:
        if counter % _TICKS == 0:
            self._close_silent()
        return await super().on_tick(counter)

    def _close_silent(self) -> None:
        """Close connections that send nothing, or never finish a head: they would use up all connections."""
        now = time.monotonic()
        patience = self.config.app.state.service.limits.request_seconds  # type: ignore[union-attr]
        before, self._silent = self._silent, {}
        for wire in self.server_state.connections:
            cycle = getattr(wire, "cycle", None)
            if cycle is not None and not cycle.response_complete:
                continue
            # Only since the same request as last time: an active connection may be idle whenever it is checked.
            last, since = before.get(wire, (cycle, now))
            self._silent[wire] = (cycle, since if last is cycle else now)
            if now - self._silent[wire][1] > patience:
                wire.transport.close()

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        collect_less_often()

    async def shutdown(self, sockets: Any = None) -> None:
        # Streams would never end, and a stop waits for running requests.
        service = self.config.app.state.service  # type: ignore[union-attr]
        service.changes.close()
        service.followers.close()
        await super().shutdown(sockets)


def server(
    dsn: str,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    limits: Limits | None = None,
    keys_later: bool = False,
    metrics_at: tuple[str, int] | None = None,
    proxies: Proxies | None = None,
) -> Server:
    """A server that is ready to run. Raises if there is no key to protect it.

    It runs even if the database does not answer. Then it is not known whether there are keys, so a key is required.

    `keys_later`: there may be no key yet. Until there is one, others get only /health and /ready.
    `proxies`: the trusted ones.
    """
    has_keys = run_apart(_may_have_keys(dsn, limits or Limits()))
    if not has_keys and not keys_later and not is_loopback(host):
        raise SetupError(
            f"there are no API keys, so everyone who reaches {host} could do anything. Create one with `faultline api-keys "
            "create NAME --scope read`, or listen on 127.0.0.1"
        )
    app = create_app(dsn, limits=limits, loopback_only=is_loopback(host), metrics_at=metrics_at, proxies=proxies)
    return Server(
        uvicorn.Config(
            app,
            host=host,
            port=port,
            http=Wire,
            ws="none",
            proxy_headers=False,  # the guard handles them
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=_GRACE_SECONDS,
        )
    )


async def _may_have_keys(dsn: str, limits: Limits) -> bool:
    database = AsyncDatabase(dsn, connect_seconds=limits.connect_seconds)
    try:
        return await answer(database.run(access.exist()))
    except DatabaseUnavailable:
        return True  # reported when the application starts
    finally:
        await database.close()
