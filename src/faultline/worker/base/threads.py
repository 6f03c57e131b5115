"""Threads for blocking tasks. A thread that never returns is abandoned: it keeps no slot and does not delay the exit.

A thread cannot be ended, so abandoned ones are counted: a process with too many should be replaced.

Libraries that keep something per thread, such as Django its connections, close it in `at_thread_end`.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from typing import TYPE_CHECKING, Any

from faultline.core import forks
from faultline.worker.base import timeout_stacks

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

#: Called in each of these threads when it ends.
at_thread_end: list[Callable[[], object]] = []
#: How long to wait for that.
_END_SECONDS = 2.0


class Threads:
    """As many as are needed at once, kept for the next call. They are daemons: a stuck one does not delay the exit.

    (concurrent.futures joins its threads at exit, and a stuck one keeps its slot forever.)
    """

    def __init__(self) -> None:
        #: Abandoned calls that have not returned. Used by the event loop only.
        self._abandoned: set[asyncio.Future[Any]] = set()
        #: In which thread each call runs.
        self._at: dict[asyncio.Future[Any], int] = {}
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        self._count = 0
        self._alive: set[threading.Thread] = set()
        self._closed = False

    def run(self, function: Callable[[], Any]) -> asyncio.Future[Any]:
        """Call it in a thread. Cancelling the future does not stop the call; its outcome is dropped."""
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[Any] = loop.create_future()
        # Read here once, so that asyncio does not warn about an outcome that nothing awaits.
        outcome.add_done_callback(lambda future: future.cancelled() or future.exception())
        context = contextvars.copy_context()

        def call() -> None:
            generation = forks.generation
            self._at[outcome] = threading.get_ident()
            try:
                result = context.run(function)
                if generation != forks.generation:
                    forks.end_child(None)
            except BaseException as error:  # noqa: BLE001 - whatever a task raises is its outcome
                if generation != forks.generation:
                    # In a child that the task forked, which has no loop.
                    forks.end_child(error)
                del self._at[outcome]
                _deliver(loop, outcome, None, error)
            else:
                del self._at[outcome]
                _deliver(loop, outcome, result, None)

        with self._lock:
            if self._idle:
                self._idle -= 1
            else:
                self._count += 1
                thread = threading.Thread(target=self._work, name=f"faultline-task-{self._count}", daemon=True)
                self._alive.add(thread)
                thread.start()
        self._calls.put(call)
        return outcome

    def stack(self, outcome: asyncio.Future[Any]) -> TracebackType | None:
        """Where a call is now, as the traceback of an error has it. None: it has ended."""
        ident = self._at.get(outcome)
        found = None if ident is None else timeout_stacks.of_thread(ident)
        # If it has ended meanwhile, its thread may be at another call.
        return found if outcome in self._at else None

    def abandon(self, outcome: asyncio.Future[Any]) -> int:
        """Do not wait for this call any more. Returns how many abandoned calls have not returned."""
        if not outcome.done():
            self._abandoned.add(outcome)
            outcome.add_done_callback(self._abandoned.discard)
        return len(self._abandoned)

    def close(self) -> None:
        """End the threads; those that are at a call, after it. What the others close in `at_thread_end` is closed then."""
        with self._lock:
            self._closed = True
            for _ in range(self._idle):
                self._calls.put(None)
            self._idle = 0
            at_calls = set(self._at.values())
            ending = [thread for thread in self._alive if thread.ident not in at_calls]
        if at_thread_end:
            for thread in ending:
                thread.join(_END_SECONDS)

    def _work(self) -> None:
        try:
            while (call := self._calls.get()) is not None:
                call()
                with self._lock:
                    if self._closed:
                        break  # nothing would tell it to end
                    self._idle += 1
            for end in at_thread_end:
                end()
        finally:
            with self._lock:
                self._alive.discard(threading.current_thread())


def _deliver(
    loop: asyncio.AbstractEventLoop, outcome: asyncio.Future[Any], result: object, error: BaseException | None
) -> None:
    def set_outcome() -> None:
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
        loop.call_soon_threadsafe(set_outcome)
