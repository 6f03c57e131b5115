"""Calls of `aenqueue` that are made at the same time go to the database together. Each is answered as if it had gone alone.

There is no timer. A call goes at once if none is on its way; what comes meanwhile goes with the next statement. So a single
caller notices nothing, and the busier a program is, the less each job costs.
"""

from __future__ import annotations

import asyncio
import contextvars
import copy
import threading
import weakref
from typing import TYPE_CHECKING, NamedTuple

from faultline.core.errors import DatabaseUnavailable, JobRejected, OutcomeUnknown

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from faultline.core.model import Enqueued, Submission

    #: Enqueues jobs in one transaction: all of them, or none.
    Send = Callable[[list[Submission]], Awaitable[list[Enqueued]]]

#: If one of these is invalid, each is sent alone.
_TOGETHER_MAX = 100


class _Waiting(NamedTuple):
    job: Submission
    answer: asyncio.Future[Enqueued]


class ConcurrentEnqueues:
    """Of one program. Each event loop has its own: connections belong to a loop."""

    def __init__(self, send: Send, seconds: float | None) -> None:
        self._send = send
        self._seconds = seconds
        self._changed = threading.Lock()
        self._of_loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _OfLoop] = weakref.WeakKeyDictionary()

    async def enqueue(self, job: Submission) -> Enqueued:
        loop = asyncio.get_running_loop()
        with self._changed:
            found = self._of_loops.get(loop)
            if found is None:
                self._of_loops[loop] = found = _OfLoop(self._send, self._seconds)
        return await found.enqueue(job)


class _OfLoop:
    def __init__(self, send: Send, seconds: float | None) -> None:
        self._send = send
        self._seconds = seconds
        self._waiting: list[_Waiting] = []
        self._on_its_way = False
        #: Sends what waits. No caller does it for others: a caller may be cancelled.
        self._sender: asyncio.Task[None] | None = None

    async def enqueue(self, job: Submission) -> Enqueued:
        if not self._on_its_way:
            self._on_its_way = True
            try:
                [enqueued] = await self._send([job])
                return enqueued
            finally:
                self._go_on()
        waiting = _Waiting(job, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        try:
            async with asyncio.timeout(self._seconds):
                return await waiting.answer
        except TimeoutError:
            raise self._too_late(waiting) from None

    def _too_late(self, waiting: _Waiting) -> Exception:
        if waiting in self._waiting:
            return DatabaseUnavailable(
                f"the database did not answer an enqueue of this program for {self._seconds:g} s; this job was not sent"
            )
        return OutcomeUnknown(
            f"the database did not answer for {self._seconds:g} s while enqueue ran; it may or may not have been committed."
            " Check the job, or send an enqueue again with the same id"
        )

    def _go_on(self) -> None:
        """Send what came meanwhile. A caller that was cancelled or waited for too long is not among it."""
        self._waiting = [one for one in self._waiting if not one.answer.done()]
        self._on_its_way = bool(self._waiting)
        if self._waiting:
            # Not in the context of a caller: what it runs belongs to no job.
            self._sender = asyncio.get_running_loop().create_task(self._send_waiting(), context=contextvars.Context())
            self._sender.add_done_callback(self._sent)

    def _sent(self, _: asyncio.Task[None]) -> None:
        self._sender = None
        self._go_on()

    async def _send_waiting(self) -> None:
        batch, self._waiting = self._waiting[:_TOGETHER_MAX], self._waiting[_TOGETHER_MAX:]
        try:
            await self._send_together(batch)
        except JobRejected:
            for one in batch:
                await self._send_alone(one)
        except asyncio.CancelledError:
            # By code that cancels all tasks of the loop.
            _fail(batch, OutcomeUnknown("cancelled while enqueue ran; it may or may not have been committed"))
            raise
        except Exception as error:  # noqa: BLE001 - the callers raise it
            _fail(batch, error)

    async def _send_together(self, batch: list[_Waiting]) -> None:
        for one, enqueued in zip(batch, await self._send([one.job for one in batch]), strict=True):
            if not one.answer.done():
                one.answer.set_result(enqueued)

    async def _send_alone(self, one: _Waiting) -> None:
        try:
            await self._send_together([one])
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - the caller raises it
            _fail([one], error)


def _fail(batch: list[_Waiting], error: Exception) -> None:
    for one in batch:
        if not one.answer.done():
            one.answer.set_exception(_own(error))


def _own(error: Exception) -> Exception:
    """Each caller raises an error of its own: to raise one changes its traceback."""
    try:
        own = copy.copy(error)
    except Exception:  # noqa: BLE001 - a class with other arguments than its message
        return error
    own.__cause__ = error.__cause__
    return own
