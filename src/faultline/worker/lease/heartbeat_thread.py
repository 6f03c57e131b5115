"""What the heartbeat runs in: a thread that calls it when something is due, and one that watches over that thread."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_WATCH_SECONDS = 0.5
#: How long a worker that stops waits for its heartbeat: for the answer to a call on its way, and to its last words.
_STOP_SECONDS = 8.0
_LOOK_SECONDS = 0.01


class Thread:
    """A pulse in a thread of its own, which a busy event loop does not starve; and a second one that watches over it."""

    def __init__(self, tick: Callable[[], float], watch: Callable[[], None], *, stop_seconds: float = _STOP_SECONDS) -> None:
        self._tick = tick
        self._watch = watch
        self._stop_seconds = stop_seconds
        self._last: Callable[[], None] = lambda: None
        self._changed = threading.Condition()
        self._stopping = self._woken = False
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="faultline-heartbeat", daemon=True)
        self._watcher = threading.Thread(target=self._watch_over, name="faultline-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._watcher.start()

    def wake(self) -> None:
        with self._changed:
            self._woken = True
            self._changed.notify()

    async def stop(self, last: Callable[[], None]) -> None:
        """The thread itself calls `last`: tasks may keep every thread of the event loop. If it hangs, it is left behind."""
        self._last = last
        self._stopping = True
        self._stopped.set()
        self.wake()
        over_at = time.monotonic() + self._stop_seconds
        # Looked at again and again: a wait that somebody else has to end may never end.
        while self._thread.is_alive():
            if time.monotonic() > over_at:
                raise TimeoutError(f"the heartbeat's thread did not end within {self._stop_seconds:g} s")
            await asyncio.sleep(_LOOK_SECONDS)

    def _watch_over(self) -> None:
        self._watch()
        while not self._stopped.wait(_WATCH_SECONDS):
            self._watch()

    def _run(self) -> None:
        while not self._stopping:
            seconds = self._tick()
            with self._changed:
                if not self._woken:
                    self._changed.wait(seconds)
                self._woken = False
        self._last()
