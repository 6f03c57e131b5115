"""What a worker does beside its jobs, each in its own asyncio task, which is restarted if it ends early."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from faultline.core import events

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    Service = Callable[[], Coroutine[Any, Any, Any]]

#: How long to wait for a cancelled task. One that swallows its cancellation is left behind.
_CANCEL_SECONDS = 3.0
_AGAIN_SECONDS = 1.0


class BackgroundTasks:
    """A worker may share the event loop with tasks that cancel everything in it. Without a restart it would look alive and
    claim nothing.
    """

    def __init__(self, worker_id: str) -> None:
        self._worker_id = worker_id
        self._tasks: dict[Service, asyncio.Task[Any]] = {}
        self._stopping = False

    def start(self, *services: Service) -> None:
        for service in services:
            self._tasks[service] = task = asyncio.create_task(service())
            task.add_done_callback(lambda _, service=service: self._ended(service))  # type: ignore[misc]

    def task(self, service: Service) -> asyncio.Task[Any]:
        return self._tasks[service]

    async def stop(self) -> None:
        self._stopping = True
        await cancel(self._tasks.values())

    def _ended(self, service: Service) -> None:
        task = self._tasks[service]
        error = None if task.cancelled() else task.exception()
        if not self._stopping and (error is not None or task.cancelled()):
            reason = "a task cancelled it" if error is None else f"{type(error).__name__}: {error}"[:2000]
            asyncio.get_running_loop().call_later(_AGAIN_SECONDS, self._start_again, service, reason)

    def _start_again(self, service: Service, reason: str) -> None:
        # If the whole program ends, the worker is stopping by now.
        if not self._stopping:
            name = getattr(service, "__qualname__", repr(service))
            events.emit("service_ended", worker=self._worker_id, service=name, reason=reason)
            self.start(service)


async def cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel and wait, but not forever: a task may swallow its cancellation."""
    running = list(tasks)
    for task in running:
        task.cancel()
    done, _ = await asyncio.wait(running, timeout=_CANCEL_SECONDS) if running else ((), ())
    for task in done:
        if not task.cancelled():
            task.exception()  # read, so that asyncio does not warn about it
