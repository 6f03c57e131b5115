"""`/live` and `/ready` over HTTP, for supervisors and orchestrators. They do not use the database.

Served by a worker's companion, or by the parent of several workers: no task can block either.
"""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from faultline.worker.companion.memory import Shared

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from faultline.worker.companion.memory import NamelessFile

#: The heartbeat asks every second; after so long without an answer a worker is not ready.
_READY_SECONDS = 10.0


def live(
    workers: Sequence[Shared], now: float, *, expected: int = 1, dying: Sequence[str] = ()
) -> tuple[bool, dict[str, Any]]:
    """Every event loop ticks, or is not yet silent for too long; and not all worker processes die again and again.

    :param dying: For each process that does, what is known of it.
    """
    silent = [max(0.0, now - shared.loop_at) for shared in workers]
    good = all(seconds <= shared.blocking_allowed() for seconds, shared in zip(silent, workers, strict=True))
    about: dict[str, Any] = {"loops_silent_seconds": [round(seconds, 1) for seconds in silent]}
    return good and len(dying) < expected, about | ({"dying": list(dying)} if dying else {})


def ready(
    workers: Sequence[Shared], now: float, *, expected: int = 1, dying: Sequence[str] = ()
) -> tuple[bool, dict[str, Any]]:
    """Every worker is live, connected and claims jobs."""
    fresh = sum(now - shared.heartbeat_at < _READY_SECONDS and not shared.stop_asked_at for shared in workers)
    good = fresh >= expected and not dying and live(workers, now)[0]
    return good, {"workers": expected, "ready": fresh} | ({"dying": list(dying)} if dying else {})


class Children:
    """The memory that each living child of one parent shares with it, by its process id."""

    def __init__(self, alive: Callable[[], dict[int, NamelessFile]]) -> None:
        self._alive = alive
        self._opened: dict[int, Shared] = {}

    def workers(self) -> list[Shared]:
        alive = self._alive()
        for pid in [pid for pid in self._opened if pid not in alive]:
            self._opened.pop(pid).close()
        for pid in alive.keys() - self._opened.keys():
            shared = Shared.of_child(alive[pid])
            if shared is not None:
                self._opened[pid] = shared
        return list(self._opened.values())


def serve(
    listening: socket.socket,
    workers: Callable[[], Sequence[Shared]],
    *,
    expected: int = 1,
    dying: Callable[[], Sequence[str]] = lambda: (),
) -> ThreadingHTTPServer:
    """Answer in threads. The caller opens the socket, so that it notices a port in use at once."""
    looks = {"/live": live, "/ready": ready}
    looking = threading.Lock()

    class Answers(BaseHTTPRequestHandler):
        timeout = 5.0

        def do_GET(self) -> None:
            look = looks.get(self.path.partition("?")[0])
            if look is None:
                self._answer(404, {"error": "not found; use /live or /ready"})
                return
            with looking:
                good, about = look(workers(), time.monotonic(), expected=expected, dying=dying())
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
