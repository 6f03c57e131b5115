"""Run one attempt and say how it ended. Whatever the task does, the answer is an ending, and the worker lives on."""

from __future__ import annotations

import asyncio
import inspect
import traceback
from collections import deque
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any

from faultline.core import events
from faultline.core.errors import FaultlineError, StaleLease
from faultline.core.model import Failure
from faultline.runtime.completer import Completed, Failed, Released
from faultline.runtime.job import BlockingJob, Job
from faultline.runtime.options import seconds
from faultline.runtime.outcome import Cancel, Retry, Snooze
from faultline.store import jsontext

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from faultline.runtime.client import Faultline
    from faultline.runtime.completer import Ending
    from faultline.runtime.hold import Hold
    from faultline.runtime.tasks import Task
    from faultline.runtime.threads import Threads
    from faultline.runtime.tracing import Tracing
    from faultline.store.database import AsyncDatabase

_ERROR_LENGTH_MAX = 16_384
_FRAMES_MAX = 5
_BACKOFF_SECONDS, _BACKOFF_SECONDS_MAX = 2.0, 3600.0
_IN_A_TURN_MAX = 100


class TimedOut(Exception):
    """An attempt took longer than its task allows."""


class Executor:
    """Turns a hold into an ending and hands that over; None when there is nothing to write: the lease is lost, or the job
    completed itself. `mark` puts a start on record; it answers False when the lease is lost.
    """

    def __init__(
        self,
        app: Faultline,
        database: AsyncDatabase,
        threads: Threads,
        *,
        mark: Callable[[Hold], Awaitable[bool]],
        hand_over: Callable[[Hold, Ending | None], None],
    ) -> None:
        self._mark = mark
        self._hand_over = hand_over
        self._app = app
        self._database = database
        self._threads = threads
        self._chance = app.host.chance
        self._monotonic = app.host.monotonic
        #: Set where jobs are traced.
        self.tracing: Tracing | None = None
        self._faults = app.host.faults
        self._result_bytes_max = 1_048_576
        self._turn = self._in_this_turn = 0

    async def run(self, hold: Hold, follow: Callable[[], Hold | None]) -> None:
        """One attempt after the other while `follow` has a next one, all in one task: to make a task takes longer than to
        run a job that does nothing. No job may notice: where one was cancelled or has changed the context, it is the last.
        """
        runner, context = asyncio.current_task(), copy_context()
        following: Hold | None = hold
        while following is not None and runner is not None:
            turn = self._turn
            await self._attempt(following, runner)
            if runner.cancelling() or _has_changed(context):
                return
            following = follow()
            if turn == self._turn and self._has_had_its_turn():
                await asyncio.sleep(0)

    def _has_had_its_turn(self) -> bool:
        """Jobs that never wait must not keep the loop from everybody else."""
        self._in_this_turn += 1
        if self._in_this_turn == 1:
            asyncio.get_running_loop().call_soon(self._next_turn)
        return self._in_this_turn > _IN_A_TURN_MAX

    def _next_turn(self) -> None:
        self._turn += 1
        self._in_this_turn = 0

    async def _attempt(self, hold: Hold, runner: asyncio.Task[Any]) -> None:
        """From the lease to its ending. One coroutine: every further one is a cost for every job."""
        ending: Ending | None = None
        try:
            if hold.lease.mark_start and not await self._mark(hold):
                return
            hold.counts.started += 1
            hold.began_at = self._monotonic()
            if self.tracing is not None:
                self.tracing.begin(hold)
            task = self._app.tasks.get(hold.lease.task)
            misfit = self._misfit(hold, task)
            if task is None or misfit is not None:
                ending = misfit
                return
            hold.run_by(runner)
            try:
                ending = self._ended(hold, task, await self._call(hold, task))
            except BaseException as error:  # noqa: BLE001 - a task may raise anything, SystemExit included
                ending = self._raised(hold, task, error)
            if self._faults.wanted:
                self._faults.reach("after_execution")
            if hold.settled or hold.lost is not None:
                ending = None
        except asyncio.CancelledError:
            # Told to stop, and the grace time is over.
            ending = None if hold.lost is not None else Released(hold)
        finally:
            hold.attempt = None  # a late loss finds nothing to cancel
            if self.tracing is not None:
                self.tracing.end(hold, ending)
            self._hand_over(hold, ending)

    def _misfit(self, hold: Hold, task: Task[..., Any] | None) -> Failed | None:
        """Why this job cannot even be started here."""
        lease = hold.lease
        if task is None:
            known = ", ".join(sorted(self._app.tasks)) or "none"
            return Failed(hold, Failure(f"no task named {lease.task} is registered in this worker; there are: {known}"))
        if lease.fault is not None:
            return self._failed(hold, task, lease.fault)
        try:
            task.check(lease.args)
        except TypeError as error:
            return self._failed(hold, task, f"the arguments do not fit {lease.task}{task.signature}: {error}")
        return None

    def _call(self, hold: Hold, task: Task[..., Any]) -> Awaitable[Any]:
        if events.are_detailed():
            events.emit_detail("execution_started", job_id=hold.lease.job_id, token=hold.lease.fencing_token)
        if self._faults.wanted:
            self._faults.reach("before_execution")
        limit = task.timeout_seconds
        if not task.is_async:
            return self._in_thread(hold, task, limit)
        args = hold.lease.args
        call: Awaitable[Any] = task.fn(Job(hold, self._database, limit), **args) if task.takes_job else task.fn(**args)
        return call if limit is None else _within(limit, call)

    async def _in_thread(self, hold: Hold, task: Task[..., Any], limit: float | None) -> Any:
        first = (BlockingJob(hold, self._app.database, limit),) if task.takes_job else ()
        outcome = self._threads.run(lambda: task.fn(*first, **hold.lease.args))
        done, _ = await asyncio.wait([outcome], timeout=limit)
        if not done:
            # Nobody can stop a thread. It goes on, but what it writes is refused once the lease is let go.
            events.emit("thread_abandoned", job_id=hold.lease.job_id, task=task.name)
            raise TimedOut(f"timed out after {limit:g} s; its thread was abandoned and can write nothing more")
        return outcome.result()

    def _raised(self, hold: Hold, task: Task[..., Any], error: BaseException) -> Ending | None:
        match error:
            case asyncio.CancelledError() if hold.lost is not None:
                return None
            case asyncio.CancelledError() if asyncio.current_task().cancelling():  # type: ignore[union-attr]
                raise error
            case asyncio.CancelledError():
                return self._failed(hold, task, "the task was cancelled from inside")
            case StaleLease():
                # Refused somewhere inside: whoever holds the lease now will finish the job.
                hold.lose("lease_lost")
                return None
            case _:
                return self._failed(hold, task, _text_of(error))

    def _ended(self, hold: Hold, task: Task[..., Any], result: Any) -> Ending:
        if result is None:
            return Completed(hold, "null")
        match result:
            case Retry():
                after = self._backoff(hold, task) if result.after is None else seconds(result.after)
                return Failed(hold, Failure(result.error, delay_seconds=after))
            case Snooze():
                return Released(hold, seconds(result.duration))
            case Cancel():
                return Failed(hold, Failure(result.reason, then="cancel"))
        if inspect.iscoroutine(result):
            result.close()
            return self._failed(hold, task, "the task returned a coroutine: it awaits nothing; make it `async def`")
        try:
            text = jsontext.encode(result, f"result of {task.name}")
        except FaultlineError as error:
            return self._failed(hold, task, str(error))
        if len(text) > self._result_bytes_max:
            return self._failed(hold, task, f"its result has {len(text)} characters, more than {self._result_bytes_max}")
        return Completed(hold, text)

    def _failed(self, hold: Hold, task: Task[..., Any], error: str) -> Failed:
        return Failed(hold, Failure(error, delay_seconds=self._backoff(hold, task)))

    def _backoff(self, hold: Hold, task: Task[..., Any]) -> float:
        attempt = hold.lease.attempt
        if task.backoff is not None:
            try:
                return min(max(0.0, float(task.backoff(attempt))), 31_536_000.0)
            except Exception as error:  # noqa: BLE001 - the user's function must not lose the job
                events.emit("backoff_failed", task=task.name, error=_text_of(error)[:500])
        # Jittered, so that jobs which failed together do not come back together.
        doubled = min(_BACKOFF_SECONDS_MAX, _BACKOFF_SECONDS * 2.0 ** min(attempt - 1, 20))
        return float(doubled * self._chance.uniform(0.75, 1.25))


def _has_changed(context: Context) -> bool:
    try:
        return copy_context() != context
    except Exception:  # noqa: BLE001 - values that cannot be compared
        return True


async def _within(limit: float, call: Awaitable[Any]) -> Any:
    scope = asyncio.timeout(limit)
    try:
        async with scope:
            return await call
    except TimeoutError as error:
        if scope.expired():
            raise TimedOut(f"timed out after {limit:g} s") from error
        raise


def _text_of(error: BaseException) -> str:
    """An error as text that any database can store, however large or broken its own text is."""
    try:
        text = f"{type(error).__name__}: {error}"[:_ERROR_LENGTH_MAX]
        last = deque(traceback.walk_tb(error.__traceback__), maxlen=_FRAMES_MAX)
        # Without the marks under each line: finding them takes longer than all else that a failed attempt needs.
        places = [(frame.f_code.co_filename, line, frame.f_code.co_name, None) for frame, line in last]
        frames = "".join(traceback.StackSummary.from_list(places).format())[-_ERROR_LENGTH_MAX:]
    except Exception:  # noqa: BLE001 - an exception whose own text raises
        text, frames = f"{type(error).__name__} (whose text cannot be shown)", ""
    whole = f"{text}\n{frames}".strip() if frames else text
    return whole.encode("utf-8", "replace").decode().replace("\x00", "\N{REPLACEMENT CHARACTER}")
