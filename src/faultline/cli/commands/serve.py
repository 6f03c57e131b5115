"""The command that serves the HTTP API and the dashboard."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, cast

import typer

from faultline.cli.commands.database import Dsn, resolved
from faultline.cli.setting_options import taking
from faultline.core.errors import SetupError
from faultline.core.settings import ServeSettings

if TYPE_CHECKING:
    from faultline.core.events import LogForm


@taking(ServeSettings)
def serve(settings: ServeSettings, dsn: Dsn = None) -> None:
    """Serve the HTTP API and the dashboard until SIGTERM or Ctrl-C.

    Each option can also be set by an environment variable, --port by FAULTLINE_SERVE_PORT, or under [serve] in
    faultline.toml.

    \b
    Examples:
      faultline serve
      faultline api-keys create ada --scope admin && faultline serve --host 0.0.0.0
    """
    from faultline.core.events import log_events  # noqa: PLC0415 - late, so that --help is quick

    try:
        from faultline.web.auth.proxies import Proxies  # noqa: PLC0415
        from faultline.web.server.server import server  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise SetupError(f"{error.name} is not installed; run: pip install 'faultline-queue[server]'") from error

    if not settings.quiet:
        log_events(form=cast("LogForm", settings.log_format))
    with resolved(dsn) as found:
        host, port = settings.host, settings.port
        metrics_at = None if settings.metrics_port is None else (settings.metrics_host, settings.metrics_port)
        proxies = Proxies.of(settings.trusted_proxies)
        ready = server(found, host=host, port=port, keys_later=settings.keys_later, metrics_at=metrics_at, proxies=proxies)
        print(f"listening on http://{'[' + host + ']' if ':' in host else host}:{port}", flush=True)
        # The server raises the signal again when it is done. That would be an error, but this is a normal stop.
        signal.signal(signal.SIGTERM, ready.handle_exit)
        ready.run()
    if not ready.started:
        raise typer.Exit(1)
