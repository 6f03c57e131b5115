"""Metrics of workers at a port. Several processes under one parent are one target, whose counters never go back.

Each child writes its numbers into its own file once a second. When a child has died, the counts of its last file are kept
and what it held is dropped. What a killed child did in its last second may be missing.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import threading
from typing import TYPE_CHECKING

from prometheus_client import start_http_server

from faultline.core.errors import SetupError
from faultline.core.forks import keep_from_forks
from faultline.worker.base.counters import NOTHING, Report, summed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from faultline.integrations.prometheus.exposition import Exposition

_WRITE_SECONDS = 1.0


@contextlib.contextmanager
def serve(exposition: Exposition, host: str, port: int) -> Iterator[None]:
    """Answer scrapes, in a thread."""
    try:
        server, thread = start_http_server(port, host, exposition.registry)
    except OSError as error:
        advice = "choose another --metrics-host or --metrics-port"
        raise SetupError(f"cannot serve metrics at {host}:{port}: {error}; {advice}") from error
    keep_from_forks(server)
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextlib.contextmanager
def report_to(folder: Path, report: Callable[[], Report]) -> Iterator[None]:
    """Write this process's numbers into the folder, once a second and at the end."""
    path = folder / f"{os.getpid()}-{secrets.token_hex(4)}.json"
    ended = threading.Event()

    def write() -> None:
        fresh = path.with_suffix(".new")
        with contextlib.suppress(OSError):  # the parent ended and removed the folder
            fresh.write_text(json.dumps(report()))
            fresh.replace(path)

    def go_on() -> None:
        while not ended.wait(_WRITE_SECONDS):
            write()

    thread = threading.Thread(target=go_on, name="faultline-report", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        write()


class Reports:
    """The children's numbers, from their files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._reading = threading.Lock()
        self._gone: Report = NOTHING
        #: The process ids of the running children.
        self.alive: Callable[[], set[int]] = set

    def summed(self) -> Report:
        with self._reading:
            # Before reading the files: a child that dies meanwhile counts as alive once more.
            alive = self.alive()
            living = []
            for path in sorted(self._folder.glob("*.json")):
                report: Report = json.loads(path.read_text())
                if int(path.name.partition("-")[0]) in alive:
                    living.append(report)
                else:
                    self._gone = summed([self._gone, {**report, "leases": 0, "processes": 0}])
                    path.unlink()
            return summed([self._gone, *living])
