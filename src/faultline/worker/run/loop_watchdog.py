"""Show the companion that the event loop is not blocked."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from faultline.core import events

if TYPE_CHECKING:
    from collections.abc import Callable

    from faultline.worker.companion.client import Standby
    from faultline.worker.write.release_unstarted import Unstarted

_TICK_SECONDS = 0.25


class LoopTick:
    """Uses timers of the loop, not an asyncio task: a job may cancel all tasks."""

    def __init__(self, worker_id: str, standby: Standby, unstarted: Unstarted, monotonic: Callable[[], float]) -> None:
        self._worker_id = worker_id
        self._standby = standby
        self._unstarted = unstarted
        self._monotonic = monotonic
        self._next: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._next = asyncio.get_running_loop().call_later(_TICK_SECONDS, self.start)
        self._standby.shared.loop_ticked(self._monotonic())
        self._standby.tick()
        if self._standby.has_released():
            events.emit("unstarted_given_back", worker=self._worker_id, reason="the event loop was blocked")
            self._unstarted.release_all()

    def stop(self) -> None:
        if self._next is not None:
            self._next.cancel()
