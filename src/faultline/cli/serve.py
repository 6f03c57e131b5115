"""The command that serves the HTTP API and the dashboard."""

from __future__ import annotations

import signal
from typing import Annotated

import typer

from faultline.cli.database import Dsn, resolved
from faultline.core.errors import Unprepared


def serve(
    host: Annotated[
        str, typer.Option(help="The address to listen on. Any other than loopback needs API keys.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8000,
    keys_later: Annotated[bool, typer.Option("--keys-later", help="Start without an API key.")] = False,  # noqa: FBT002
    metrics_port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Serve metrics on this port, without a key.")
    ] = None,
    metrics_host: Annotated[str, typer.Option(help="The address for it; 0.0.0.0 for all, as in a container.")] = "127.0.0.1",
    trusted_proxies: Annotated[
        str | None,
        typer.Option(
            envvar="FAULTLINE_TRUSTED_PROXIES",
            metavar="ADDRESSES",
            help="Proxies whose X-Forwarded-For and X-Forwarded-Proto are trusted: addresses and networks, comma-separated.",
        ),
    ] = None,
    dsn: Dsn = None,
    quiet: Annotated[bool, typer.Option(help="Do not log events to standard error.")] = False,  # noqa: FBT002
) -> None:
    """Serve the HTTP API and the dashboard until SIGTERM or Ctrl-C.

    \b
    Examples:
      faultline serve
      faultline api-keys create ada --scope admin && faultline serve --host 0.0.0.0
    """
    from faultline.core.events import log_events  # noqa: PLC0415 - late, so that --help is quick

    try:
        from faultline.web.proxies import Proxies  # noqa: PLC0415
        from faultline.web.server import server  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise Unprepared(f"{error.name} is not installed; run: pip install 'faultline-queue[server]'") from error

    if not quiet:
        log_events()
    with resolved(dsn) as found:
        metrics_at = None if metrics_port is None else (metrics_host, metrics_port)
        proxies = Proxies.of(trusted_proxies)
        ready = server(found, host=host, port=port, keys_later=keys_later, metrics_at=metrics_at, proxies=proxies)
        print(f"listening on http://{'[' + host + ']' if ':' in host else host}:{port}", flush=True)
        # The server raises the signal once more when it is done, which would end us with an error: a stop in order is none.
        signal.signal(signal.SIGTERM, ready.handle_exit)
        ready.run()
    if not ready.started:
        raise typer.Exit(1)
