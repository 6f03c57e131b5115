"""Threads for blocking tasks. One that never comes back is abandoned: it costs a thread, not a slot, and not the exit.

Nobody can end a thread, so abandoned ones are counted: a process that has too many is better replaced.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from typing import TYPE_CHECKING, Any

from faultline.core import forks

if TYPE_CHECKING:
    from collections.abc import Callable


class Threads:
    """As many as are wanted at once, kept for the next call. Daemons: a stuck one does not hold the process up.

    (concurrent.futures would: its threads are joined at exit, and a stuck one keeps its place forever.)
    """

    def __init__(self) -> None:
        #: Calls that nobody waits for any more and that have not come back. Touched by the event loop alone.
        self._abandoned: set[asyncio.Future[Any]] = set()
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        self._count = 0

    def run(self, function: Callable[[], Any]) -> asyncio.Future[Any]:
        """Call it in a thread. A future that is cancelled meanwhile does not stop the call: its outcome is dropped."""
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[Any] = loop.create_future()
        # Looked at here once, so that an outcome which nobody waits for any more is not complained about.
        outcome.add_done_callback(lambda future: future.cancelled() or future.exception())
        context = contextvars.copy_context()

        def call() -> None:
            generation = forks.generation
            try:
                result = context.run(function)
                if generation != forks.generation:
                    forks.end_child(None)
            except BaseException as error:  # noqa: BLE001 - whatever a task raises is its outcome
                if generation != forks.generation:
                    # In a child that the task forked: only the worker itself has a loop to tell.
                    forks.end_child(error)
                _tell(loop, outcome, None, error)
            else:
                _tell(loop, outcome, result, None)

        with self._lock:
            if self._idle:
                self._idle -= 1
            else:
                self._count += 1
                threading.Thread(target=self._work, name=f"faultline-task-{self._count}", daemon=True).start()
        self._calls.put(call)
        return outcome

    def abandon(self, outcome: asyncio.Future[Any]) -> int:
        """Wait for this call no longer. Returns how many such calls have not come back yet."""
        if not outcome.done():
            self._abandoned.add(outcome)
            outcome.add_done_callback(self._abandoned.discard)
        return len(self._abandoned)

    def close(self) -> None:
        with self._lock:
            for _ in range(self._idle):
                self._calls.put(None)
            self._idle = 0

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            with self._lock:
                self._idle += 1


def _tell(
    loop: asyncio.AbstractEventLoop, outcome: asyncio.Future[Any], result: object, error: BaseException | None
) -> None:
    def settle() -> None:
        if outcome.done():
            return
        if error is None:
            outcome.set_result(result)
        elif isinstance(error, StopIteration):
            # A future cannot carry it.
            outcome.set_exception(RuntimeError(f"the task raised {error!r}"))
        else:
            outcome.set_exception(error)

    if not loop.is_closed():
        loop.call_soon_threadsafe(settle)
