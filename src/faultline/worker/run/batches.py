"""Run jobs of one task together. Each keeps its own asyncio task, lease and ending: what happens to one is not the others'.

A job of a batch waits until the batch is full or its first job has waited long enough. A job that is lost meanwhile, or
while the function runs, leaves the batch alone; the function is cancelled when all have left.
"""

from __future__ import annotations

import asyncio
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from faultline.attempt.outcomes import Outcome
from faultline.attempt.unawaited import never_awaited, of_batch
from faultline.core.running import running
from faultline.worker.lease.held_lease import LEAVE_SECONDS
from faultline.worker.write.endings import TimedOut

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from faultline.app.batch_functions import Batch
    from faultline.app.tasks import Task
    from faultline.attempt.attempt import Attempt
    from faultline.attempt.unawaited import Pending
    from faultline.worker.base.threads import Threads
    from faultline.worker.lease.held_lease import HeldLease
    from faultline.worker.lease.stop import Stop


class _Member:
    """A job in a batch, and what became of it: whether it raised, and what."""

    def __init__(self, hold: HeldLease, item: Any) -> None:
        self.hold = hold
        self.item = item
        self.answer: asyncio.Future[tuple[bool, Any]] = asyncio.get_running_loop().create_future()
        self.has_left = False


class _Gathering:
    def __init__(self, task: Task[..., Any], batch: Batch) -> None:
        self.task = task
        self.batch = batch
        self.members: list[_Member] = []
        self.timer: asyncio.TimerHandle | None = None
        self.running: asyncio.Task[None] | None = None
        #: Calls that its function made and has not awaited.
        self.unawaited: set[Pending[Any]] = set()


class BatchCalls:
    """`seen`: a job as its task sees it."""

    def __init__(self, threads: Threads, stop: Stop, seen: Callable[[HeldLease], Attempt]) -> None:
        self._threads = threads
        self._stop = stop
        self._seen = seen
        #: Those that wait for more jobs, by task.
        self._open: dict[str, _Gathering] = {}

    async def join(self, hold: HeldLease, task: Task[..., Any], batch: Batch, at_once: int) -> Any:
        """Run this job with others. `at_once`: how many jobs its queue runs; a batch cannot be larger."""
        gathering = self._open.get(task.name)
        if gathering is None:
            self._open[task.name] = gathering = _Gathering(task, batch)
            gathering.timer = asyncio.get_running_loop().call_later(batch.wait_seconds, self._begin, gathering)
        member = _Member(hold, hold.lease.args[batch.parameter])
        gathering.members.append(member)
        if len(gathering.members) >= min(batch.size, at_once):
            self._begin(gathering)
        try:
            raised, value = await member.answer
        except asyncio.CancelledError:
            self._leave(gathering, member)
            raise
        if raised:
            error, trace = value
            raise error.with_traceback(trace)  # each with the frames of the call, and not with those of the others
        return value

    def _leave(self, gathering: _Gathering, member: _Member) -> None:
        member.has_left = True
        if gathering.running is None:
            gathering.members.remove(member)
        elif all(one.has_left for one in gathering.members):
            gathering.running.cancel()

    def _begin(self, gathering: _Gathering) -> None:
        if self._open.get(gathering.task.name) is gathering:
            del self._open[gathering.task.name]
        if gathering.timer is not None:
            gathering.timer.cancel()
        if gathering.members and gathering.running is None:
            context = copy_context()
            context.run(running.set, None)  # it is not one job that runs here
            context.run(of_batch.set, gathering.unawaited)
            gathering.running = asyncio.get_running_loop().create_task(self._run(gathering), context=context)

    async def _run(self, gathering: _Gathering) -> None:
        members = gathering.members
        answers: list[tuple[bool, Any]]
        try:
            answers = _answers(await self._called(gathering), len(members))
        except BaseException as error:  # noqa: BLE001 - whatever it raises is raised for each of its jobs
            answers = [_raised(error)] * len(members)
        for member, answer in zip(members, answers, strict=True):
            if not member.answer.done():
                member.answer.set_result(answer)

    async def _called(self, gathering: _Gathering) -> Any:
        batch, limit = gathering.batch, gathering.task.timeout_seconds
        items: list[Any] = [member.item for member in gathering.members]
        given = ([self._seen(member.hold) for member in gathering.members], items) if batch.takes_jobs else (items,)
        call: asyncio.Future[Any]
        if batch.is_async:
            call = asyncio.ensure_future(_caught(batch.fn, given))
        else:
            call = self._threads.run(lambda: _caught_blocking(batch.fn, given))
        try:
            done, _ = await asyncio.wait([call], timeout=limit)
        except asyncio.CancelledError:
            self._threads.abandon(call)
            if batch.is_async:
                call.cancel()  # a thread goes on, and counts until it returns
            raise
        if not done:
            where = self._threads.stack(call)
            await self._abandon(gathering, call)
            if batch.is_async and call.done() and not call.cancelled():
                where = call.result()[1].__traceback__ if call.result()[0] else None
            raise TimedOut(f"timed out after {limit:g} s").with_traceback(where)
        raised, value = call.result()
        if raised:
            raise value
        if gathering.unawaited:
            await asyncio.sleep(0)  # what was given to asyncio tasks begins
        if gathering.unawaited:
            raise never_awaited(gathering.unawaited, ", so it did not run")
        return value

    async def _abandon(self, gathering: _Gathering, call: asyncio.Future[Any]) -> None:
        """A coroutine can be cancelled, and may ignore that; a thread goes on."""
        is_async = gathering.batch.is_async
        if is_async:
            call.cancel()
            await asyncio.wait([call], timeout=LEAVE_SECONDS)
        if not call.done():
            self._stop.is_stuck(gathering.members[0].hold, self._threads.abandon(call), is_async=is_async)


def _answers(results: Any, jobs: int) -> list[tuple[bool, Any]]:
    if results is None:
        return [(False, None)] * jobs
    if not isinstance(results, list | tuple) or len(results) != jobs:
        shown = f"{len(results)} results" if isinstance(results, list | tuple) else type(results).__name__
        raise TypeError(f"a batch of {jobs} jobs returned {shown}; return a list with one result for each, or None")
    return [
        _raised(one) if isinstance(one, BaseException) and not isinstance(one, Outcome) else (False, one) for one in results
    ]


def _raised(error: BaseException) -> tuple[bool, tuple[BaseException, TracebackType | None]]:
    return True, (error, error.__traceback__)


async def _caught(fn: Callable[..., Any], given: tuple[Any, ...]) -> tuple[bool, Any]:
    """SystemExit and its like must not reach the event loop."""
    try:
        return False, await fn(*given)
    except BaseException as error:  # noqa: BLE001 - see above
        return True, error


def _caught_blocking(fn: Callable[..., Any], given: tuple[Any, ...]) -> tuple[bool, Any]:
    try:
        return False, fn(*given)
    except BaseException as error:  # noqa: BLE001 - likewise
        return True, error
