"""`/live` and `/ready` over HTTP, for supervisors and orchestrators. They do not use the database.

Served by a worker's companion, or by the parent of several workers: no task can block either.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from faultline.worker.shared import Shared

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence
    from pathlib import Path

#: The heartbeat asks every second; after so long without an answer a worker is not ready.
_READY_SECONDS = 10.0


def live(workers: Sequence[Shared], now: float) -> tuple[bool, dict[str, Any]]:
    """Every event loop ticks, or is not yet silent for too long."""
    silent = [max(0.0, now - shared.loop_at) for shared in workers]
    good = all(seconds <= shared.silence_allowed() for seconds, shared in zip(silent, workers, strict=True))
    return good, {"loops_silent_seconds": [round(seconds, 1) for seconds in silent]}


def ready(workers: Sequence[Shared], now: float, expected: int = 1) -> tuple[bool, dict[str, Any]]:
    """Every worker is live, connected and claims jobs."""
    fresh = sum(now - shared.beat_at < _READY_SECONDS and not shared.stop_asked_at for shared in workers)
    return fresh >= expected and live(workers, now)[0], {"workers": expected, "ready": fresh}


class Folder:
    """Holds the shared memory of each child of one parent, in a file named after its process."""

    def __init__(self, folder: Path, alive: Callable[[], set[int]]) -> None:
        self._folder = folder
        self._alive = alive
        self._opened: dict[int, Shared] = {}

    def workers(self) -> list[Shared]:
        alive = self._alive()
        for pid in [pid for pid in self._opened if pid not in alive]:
            self._opened.pop(pid).close()
        for pid in alive - self._opened.keys():
            with contextlib.suppress(OSError, ValueError):  # it has not started yet
                self._opened[pid] = Shared.open(str(self._folder / f"{pid}.shared"))
        return list(self._opened.values())


def serve(listening: socket.socket, workers: Callable[[], Sequence[Shared]], *, expected: int = 1) -> ThreadingHTTPServer:
    """Answer in threads. The caller opens the socket, so that it notices a port in use at once."""
    looks: dict[str, Callable[[Sequence[Shared], float], tuple[bool, dict[str, Any]]]] = {
        "/live": live,
        "/ready": partial(ready, expected=expected),
    }
    looking = threading.Lock()

    class Answers(BaseHTTPRequestHandler):
        timeout = 5.0

        def do_GET(self) -> None:
            look = looks.get(self.path.partition("?")[0])
            if look is None:
                self._answer(404, {"error": "not found; use /live or /ready"})
                return
            with looking:
                good, about = look(workers(), time.monotonic())
            self._answer(200 if good else 503, {"ok": good, **about})

        def _answer(self, status: int, about: dict[str, Any]) -> None:
            body = json.dumps(about).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("", 0), Answers, bind_and_activate=False)
    server.socket.close()
    server.socket = listening
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="faultline-health", daemon=True).start()
    return server
