"""Processes for tasks that compute. They hold no lease and write nothing: a process that hangs or dies harms one attempt.

A process runs one job at a time. It is killed when the time of its job is up, when the lease is lost, and with its worker.
Started anew (never forked: a worker has threads), it imports the task's module, and is used for many jobs.

A process whose jobs are quick is given the next one while it runs one: it would wait for its worker otherwise, at each job
for as long as a short job takes. The next one is taken back when its turn does not come soon, or when another process is
free; the process cannot have begun it then.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections import deque
from contextlib import asynccontextmanager
from contextvars import Context
from math import inf
from typing import TYPE_CHECKING, Any

from faultline.attempt.outcomes import Snooze
from faultline.attempt.storable_text import storable
from faultline.core import events
from faultline.core.bounds import ARGS_BYTES_MAX, RESULT_BYTES_MAX
from faultline.worker.base.threads import Threads
from faultline.worker.run.processes.task_process import QUICK_SECONDS, Call, ProcessDied, TaskProcess, end_of, frame_of
from faultline.worker.write.endings import TimedOut

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Iterable

    from faultline.app.tasks import Task
    from faultline.worker.lease.held_lease import HeldLease, Source

#: How long a process may take to start and to import the modules of the program.
_START_SECONDS = 60.0
_CLOSE_SECONDS = 2.0
#: How long after its socket the status of a process may come.
_STATUS_SECONDS = 2.0
#: If the machine cannot start a process, its job is released for so long.
_AGAIN_SECONDS = 5.0
#: How long a process that is replaced may take to end.
_END_SECONDS = 5.0
#: After so many processes that ended before they began it, an attempt has failed.
_DEATHS_MAX = 5
_LOG_SECONDS = 60.0
#: A process that has read its next job tells within this time that it has ended the one before.
_REPORT_SECONDS = 1.0


def cpus() -> int:
    """How many processes can compute at once."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class TaskProcesses:
    """At most `size` at once; started when needed, and kept. `ahead`: quick ones are given a job ahead."""

    def __init__(self, size: int, tasks: Iterable[Task[..., Any]], *, ahead: bool = True) -> None:
        #: What each process imports before its first job, so that this takes nothing of the job's time.
        self._functions = [(task.fn.__module__, task.fn.__qualname__) for task in tasks if task.processes is not None]
        self._size = size
        self._ahead = ahead
        self.result_bytes_max, self.args_bytes_max = RESULT_BYTES_MAX, ARGS_BYTES_MAX
        self._replaced_logged_at = -inf
        self._numbers = itertools.count(1)
        self._waiting: deque[Call] = deque()
        #: Those that may be given jobs, or are about to.
        self._living: list[TaskProcess] = []
        #: Those whose end was not seen.
        self._all: set[TaskProcess] = set()
        self._threads = Threads()
        self._reporting: set[asyncio.Task[None]] = set()
        #: Looks for jobs whose turn does not come.
        self._look_later: asyncio.TimerHandle | None = None

    async def run(self, hold: HeldLease, task: Task[..., Any], limit: float | None, source: Source) -> Any:
        """Run the task in a process. Raises what it raises, `TimedOut` and `ProcessDied`; results are `Returned`."""
        source.computing += 1
        try:
            return await self._answer(self._call(hold, task, limit, source))
        finally:
            source.computing -= 1

    @asynccontextmanager
    async def one(self, source: Source) -> AsyncIterator[TaskProcess]:
        """A process that runs nothing else meanwhile. Killed afterwards if it has not answered."""
        source.computing += 1
        try:
            process: TaskProcess = await self._answer(Call(next(self._numbers), source))
            try:
                yield process
            finally:
                self._release(process)
        finally:
            source.computing -= 1

    async def run_in(
        self, process: TaskProcess, hold: HeldLease, task: Task[..., Any], limit: float | None, source: Source
    ) -> Any:
        """Likewise, in this one. If it has ended since, in another."""
        if process.is_closed:
            return await self.run(hold, task, limit, source)
        return await self._answer(self._call(hold, task, limit, source), process)

    def _call(self, hold: HeldLease, task: Task[..., Any], limit: float | None, source: Source) -> Call:
        frame = frame_of(hold, task, limit, self.result_bytes_max, self.args_bytes_max)
        return Call(next(self._numbers), source, hold=hold, task=task, frame=frame, limit=limit)

    async def close(self) -> None:
        """Let idle ones end by themselves, and kill what does not."""
        self._living.clear()
        if self._look_later is not None:
            self._look_later.cancel()
        for process in self._all:
            process.close()
        waiting = [self._threads.run(process.wait) for process in self._all]
        if waiting:
            _, left = await asyncio.wait(waiting, timeout=_CLOSE_SECONDS)
            for process in self._all:
                process.kill()
            if left:
                await asyncio.wait(left, timeout=_CLOSE_SECONDS)
        self._threads.close()

    async def _answer(self, call: Call, process: TaskProcess | None = None) -> Any:
        call.source.queued += 1
        try:
            if process is None:
                self._waiting.append(call)
                self._hand_out()
            else:
                process.hand(call)
            raised, value = await call.answer
        except asyncio.CancelledError:
            self._drop(call)
            raise
        finally:
            if call.began_at is None:
                call.source.queued -= 1
        if raised:
            raise value
        return value

    # Which process runs which job

    def has_room(self) -> None:
        self._hand_out()

    def _hand_out(self) -> None:
        self._give()
        if self._ahead and not self._waiting and any(process.is_idle for process in self._living):
            for process in self._living:
                if len(process.calls) > 1:
                    self._waiting.extend(process.withdraw())
            self._give()

    def _give(self) -> None:
        waiting, living = self._waiting, self._living
        while waiting:
            call = waiting[0]
            process = next((one for one in living if one.may_run(call)), None)
            if process is None:
                starting = sum(not one.is_ready for one in living)
                if len(living) < self._size and starting < len(waiting):
                    self._start()
                    continue
                if call.wants_new_process:
                    used = next((one for one in living if one.is_idle), None)
                    if used is None or starting:
                        return
                    self._end(used)  # in its place a new one starts
                    continue
                process = next((one for one in living if one.takes_ahead), None) if self._ahead else None
                if process is None:
                    return
                self._look_soon()
            waiting.popleft()
            if call.frame:
                process.hand(call)
            else:
                process.is_reserved = True
                call.begin(0.0)
                call.end(process, raised=False)

    def _look_soon(self) -> None:
        if self._look_later is None:
            loop = asyncio.get_running_loop()
            self._look_later = loop.call_later(QUICK_SECONDS, self._look, context=Context())

    def _look(self) -> None:
        """A job whose turn does not come soon waits here, for whichever process is free first."""
        self._look_later = None
        now = asyncio.get_running_loop().time()
        for process in self._living:
            calls = process.calls
            if len(calls) > 1 and now - (calls[0].began_at or now) >= QUICK_SECONDS:
                process.is_quick = False
                self._again(process.withdraw())
        self._hand_out()
        if any(len(process.calls) > 1 for process in self._living):
            self._look_soon()

    def _again(self, calls: Iterable[Call]) -> None:
        """They have not begun: they are the next."""
        self._waiting.extendleft(reversed([call for call in calls if not call.answer.done()]))

    def _release(self, process: TaskProcess) -> None:
        process.is_reserved = False
        if process.calls:
            self._end(process)
        self._hand_out()

    # How a call ends that is not answered

    def is_late(self, call: Call) -> None:
        process = next((one for one in self._living if call in one.calls), None)
        if process is not None:
            process.is_quick = False  # nothing is to wait for it
            self._again(process.withdraw())
            if len(process.calls) == 1:
                call.is_late = True
                self._do(self._end_late(process, call))
            else:
                self._drop_soon(process, call)
            self._hand_out()

    def has_not_begun(self, process: TaskProcess, call: Call) -> None:
        """It may be this loop that stood still: what the process has sent meanwhile is read first."""
        loop = asyncio.get_running_loop()
        if call in process.calls:
            call.timer = loop.call_later(_REPORT_SECONDS, self._replace_frozen, process, call, context=Context())

    def _replace_frozen(self, process: TaskProcess, call: Call) -> None:
        if call.began_at is not None or call not in process.calls:
            return
        self._again(process.withdraw())
        # One that has read the job may have begun it.
        if call in process.calls:
            process.calls.remove(call)
            call.end(ProcessDied("the process of the task did not begin"), raised=True)
        self._end(process)
        self._hand_out()

    async def _end_late(self, process: TaskProcess, call: Call) -> None:
        late = TimedOut(f"timed out after {call.limit:g} s; its process was killed")
        where = await process.where()
        if where:
            vars(late)["__faultline_text__"] = storable(f"TimedOut: {late}\n{where}".rstrip())
        if not call.answer.done():
            call.end(late, raised=True)
            self._drop(call)

    def _drop(self, call: Call) -> None:
        """Nobody waits for this one any more. A process that runs it is killed; its next job begins elsewhere."""
        if not call.frame:
            if call.answer.done() and not call.answer.cancelled() and call.began_at is not None:
                self._release(call.answer.result()[1])
        elif call in self._waiting:
            self._waiting.remove(call)
        else:
            process = next((one for one in self._living if call in one.calls), None)
            if process is not None:
                self._drop_in(process, call)
        self._hand_out()

    def _drop_in(self, process: TaskProcess, call: Call) -> None:
        back = process.withdraw()
        self._again(back)
        if call in back:
            return
        if len(process.calls) == 1:
            self._end(process)
        else:
            # It has ended the first one and read the second, and is about to tell: the second one is not to be killed for
            # the first, nor the answer of the first to be lost.
            self._drop_soon(process, call)

    def _drop_soon(self, process: TaskProcess, call: Call) -> None:
        asyncio.get_running_loop().call_later(_REPORT_SECONDS, self._drop_late, process, call, context=Context())

    def _drop_late(self, process: TaskProcess, call: Call) -> None:
        if call in process.calls:
            call.end(ProcessDied("the process of the task did not answer"), raised=True)
            self._end(process)
            self._hand_out()

    # How a process starts and ends

    def _start(self) -> None:
        """Of those that wait, the first one is told if it fails."""
        try:
            process = Context().run(TaskProcess.start, self._functions, self)
        except OSError as error:  # no memory or no process left for now
            self._not_started(self._waiting.popleft(), error)
            return
        self._all.add(process)
        self._living.append(process)
        loop = asyncio.get_running_loop()
        loop.call_later(_START_SECONDS, self._start_is_over, process, context=Context())

    def _start_is_over(self, process: TaskProcess) -> None:
        if process in self._living and not process.is_ready:
            self._not_started(self._end(process), TimeoutError(f"it took longer than {_START_SECONDS:g} s"))
            self._hand_out()

    def _not_started(self, call: Call | None, error: OSError) -> None:
        events.emit("process_not_started", error=f"{type(error).__name__}: {error}", again_in=_AGAIN_SECONDS)
        if call is not None:
            again = Snooze(_AGAIN_SECONDS)
            again.__cause__ = error
            call.end(again, raised=True)

    def is_spent(self, process: TaskProcess, task: str, why: str | None) -> None:
        """It has run its jobs, uses too much memory, or a job has left something in it (`why`). It reads no other job, and
        ends by itself, unless a thread keeps it.
        """
        self._again(process.withdraw())
        ended = self._forget(process)
        process.close()
        loop = asyncio.get_running_loop()
        late = loop.call_later(_END_SECONDS, process.kill, context=Context())
        ended.add_done_callback(lambda _: late.cancel())
        if why is not None and loop.time() > self._replaced_logged_at + _LOG_SECONDS:
            self._replaced_logged_at = loop.time()
            events.emit("task_process_replaced", task=task, reason=why)
        self._hand_out()

    def is_useless(self, process: TaskProcess, why: ProcessDied | None = None) -> None:
        """It runs what it is not to run, or sends what cannot be read, or could not import the program."""
        ran = self._end(process)
        if why is not None and ran is not None:
            self._end_of_dead(process, ran, why)
        self._hand_out()

    def has_died(self, process: TaskProcess) -> None:
        process.close()
        ended = self._forget(process)
        ran = self._ran(process)
        self._do(self._report(process, ran, ended))
        self._hand_out()

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        reporting = asyncio.get_running_loop().create_task(work, context=Context())
        self._reporting.add(reporting)
        reporting.add_done_callback(self._reporting.discard)

    async def _report(self, process: TaskProcess, ran: Call | None, ended: asyncio.Future[int]) -> None:
        await asyncio.wait([ended], timeout=_STATUS_SECONDS)
        # Its number is no other group's as long as what it has started lives.
        process.kill_all()
        if ran is not None:
            self._end_of_dead(process, ran, end_of(ended.result() if ended.done() else None))
            self._hand_out()

    def _end_of_dead(self, process: TaskProcess, call: Call, why: ProcessDied) -> None:
        """If the process had run other jobs, one of these may be the cause: memory that it kept, a library that it broke, an
        object whose `__del__` exits. So this one runs again, in a new process. A last attempt never starts twice.
        """
        if call.is_late:
            return  # it has timed out, and is about to end so
        if not process.jobs_ended or call.began_at is None or call.hold is None:
            call.end(why, raised=True)
            return
        lease, reason = call.hold.lease, f"{why}; jobs that it had run before: {process.jobs_ended}"
        if call.answer.done() or lease.attempt >= lease.max_attempts:
            call.end(ProcessDied(reason), raised=True)
            return
        events.emit("task_process_replaced", job_id=lease.job_id, task=lease.task, reason=f"{reason}; its job runs again")
        call.begin_again()
        self._again([call])

    def _end(self, process: TaskProcess) -> Call | None:
        process.kill()
        self._forget(process)
        return self._ran(process)

    def _ran(self, process: TaskProcess) -> Call | None:
        """The job that an ended process ran; or one that waits, if it did not start. The others begin elsewhere."""
        calls = list(process.calls)
        process.calls.clear()
        if not process.is_ready:
            return self._waiting.popleft() if self._waiting else None
        if not calls:
            return None
        first = calls[0]
        first.deaths += first.began_at is None
        # What killed the process before it began the job is not the job's, unless it happens each time.
        ran = calls.pop(0) if first.began_at is not None or first.deaths >= _DEATHS_MAX else None
        self._again(calls)
        return ran

    def _forget(self, process: TaskProcess) -> asyncio.Future[int]:
        """Wait for its end beside everything else: a killed process may hang in the kernel."""
        if process in self._living:
            self._living.remove(process)
        ended = self._threads.run(process.wait)
        ended.add_done_callback(lambda _: self._all.discard(process))
        return ended
