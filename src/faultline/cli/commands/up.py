"""`faultline up`: everything on one machine, as a demo. All processes end with the command, however it ends."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from faultline.cli.commands.database import Dsn, resolved
from faultline.core.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

_START_SECONDS, _STOP_SECONDS = 30.0, 20.0
_FROZEN_SECONDS, _CALM_SECONDS = 8.0, 20.0
SHOP = "faultline.cli.demo_shop"
RACES = "faultline.cli.demo_race"


def up(
    port: Annotated[
        int, typer.Option(min=1, max=65535, metavar="NUMBER", help="The port of the API and the dashboard.")
    ] = 8000,
    workers: Annotated[int, typer.Option(min=1, max=64, metavar="NUMBER", help="Worker processes.")] = 2,
    load: Annotated[bool, typer.Option(help="Enqueue the orders of a small demo shop.")] = True,  # noqa: FBT002
    trouble: Annotated[bool, typer.Option("--trouble", help="Freeze a worker now and then.")] = False,  # noqa: FBT002
    dsn: Dsn = None,
) -> None:
    """Start PostgreSQL, the API, the dashboard, workers and a demo load, until Ctrl-C.

    The database is a private one in the folder .faultline, unless --dsn names another.

    \b
    Examples:
      faultline up
      faultline up --trouble
      faultline up --port 9000 --workers 4 --no-load
    """
    from faultline.store.database import Database  # noqa: PLC0415 - late, so that --help is quick
    from faultline.store.install import migrate  # noqa: PLC0415
    from faultline.store.translation import translated  # noqa: PLC0415

    _refuse_without_server()
    _refuse_taken(port)
    signal.signal(signal.SIGTERM, _interrupt)
    with resolved(dsn or "embedded:") as found, contextlib.ExitStack() as stack:
        with Database(found).connect() as connection, translated(found):
            migrate.migrate(connection)
        crew = Crew(found)
        stack.callback(crew.stop)
        crew.start("serve", "faultline", "serve", "--quiet", "--port", str(port))
        hands = [crew.start(f"worker {n + 1}", "faultline", "worker", f"{SHOP}:app", "--quiet") for n in range(workers)]
        if load:
            crew.start("load", SHOP)
            crew.start("races", RACES)
        _wait_for(crew, f"http://127.0.0.1:{port}/health")
        print(
            f"Faultline is up: http://127.0.0.1:{port}  (API description: /openapi.json). Press Ctrl-C to stop.", flush=True
        )
        if load:
            print(
                "Every half minute a worker of the queue `races` stalls and comes back; the database refuses its write.",
                flush=True,
            )
        with contextlib.suppress(KeyboardInterrupt):
            for frozen in _turns(hands) if trouble else _for_ever():
                crew.check()
                _freeze(frozen, crew) if frozen else time.sleep(0.5)
        print("stopping", flush=True)


class Crew:
    """Child processes that end with this process, or when their pipe is closed."""

    def __init__(self, dsn: str) -> None:
        self._environment = {**os.environ, "FAULTLINE_DSN": dsn}
        self._members: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        # In its own session: Ctrl-C reaches only this process, which then ends the others.
        member = subprocess.Popen(
            [sys.executable, "-m", "faultline.cli.end_with_parent", *words],
            stdin=subprocess.PIPE,
            env=self._environment,
            start_new_session=True,
        )
        self._members[name] = member
        return member

    def check(self) -> None:
        for name, member in self._members.items():
            if member.poll() is not None:
                raise SetupError(f"{name} ended with exit code {member.returncode}; see its output above")

    def stop(self) -> None:
        for member in self._members.values():
            if member.stdin is not None:
                member.stdin.close()
            with contextlib.suppress(ProcessLookupError):
                member.send_signal(signal.SIGCONT)
        until = time.monotonic() + _STOP_SECONDS
        for member in self._members.values():
            try:
                member.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                member.kill()
                member.wait()


def _refuse_without_server() -> None:
    """Before anything starts: the server itself would say it only in a child's output, when PostgreSQL runs already."""
    missing = [name for name in ("fastapi", "jinja2", "uvicorn") if importlib.util.find_spec(name) is None]
    if missing:
        raise SetupError(
            f"{missing[0]} is not installed; run: pip install 'faultline-queue[all]'"
            " (without installing: uvx --from 'faultline-queue[all]' faultline up)"
        )


def _refuse_taken(port: int) -> None:
    """Another server at this port would answer instead of ours."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise SetupError(f"port {port} is in use ({error.strerror}); choose another: faultline up --port 9000") from None


def _wait_for(crew: Crew, address: str) -> None:
    """Wait until the server answers. Raises if a process ends before that."""
    import urllib.error  # noqa: PLC0415
    import urllib.request  # noqa: PLC0415

    until = time.monotonic() + _START_SECONDS
    while time.monotonic() < until:
        crew.check()
        try:
            with urllib.request.urlopen(address, timeout=2):  # noqa: S310 - our own address
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise SetupError(
        f"no answer from {address} after {_START_SECONDS:g} s; is the port in use? Try: faultline up --port 9000"
    )


def _for_ever() -> Iterator[None]:
    while True:
        yield None


def _turns(hands: list[subprocess.Popen[bytes]]) -> Iterator[subprocess.Popen[bytes] | None]:
    """Calm for a while, then one worker after the other."""
    while True:
        for hand in hands:
            until = time.monotonic() + _CALM_SECONDS
            while time.monotonic() < until:
                yield None
            yield hand


def _freeze(worker: subprocess.Popen[bytes], crew: Crew) -> None:
    """Freeze it longer than its leases: others claim its jobs, and its late writes are refused."""
    print(f"worker {worker.pid} is frozen for {_FROZEN_SECONDS:g} s", flush=True)
    worker.send_signal(signal.SIGSTOP)
    try:
        time.sleep(_FROZEN_SECONDS)
    finally:
        worker.send_signal(signal.SIGCONT)
    crew.check()


def _interrupt(_: int, __: FrameType | None) -> None:
    raise KeyboardInterrupt
