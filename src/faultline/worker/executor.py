"""Run one attempt and say how it ended. Whatever the task does, the answer is an ending, and the worker lives on."""

from __future__ import annotations

import asyncio
import inspect
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any

from faultline.app.attempt import TIMED_OUT
from faultline.app.blame import is_caused_by
from faultline.app.blocking_job import BlockingJob
from faultline.app.job import Job
from faultline.app.outcomes import SNOOZE_SECONDS_MIN, Cancel, Retry, Snooze, delay_seconds
from faultline.app.texts import storable, text_of
from faultline.core import events, forks
from faultline.core.errors import FenceBroken, ResultRejected, StaleLease, UnreadableJson
from faultline.core.model import Failure
from faultline.store import jsontext
from faultline.worker.completer import RETURN_LESS, Completed, Failed, Released
from faultline.worker.giving_back import GivingBack
from faultline.worker.hold import LEAVE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from faultline.app.registry import Registry
    from faultline.app.tasks import Task
    from faultline.store.async_database import AsyncDatabase
    from faultline.store.database import Database
    from faultline.worker.completer import Ending
    from faultline.worker.hold import Hold
    from faultline.worker.threads import Threads
    from faultline.worker.tracing import Tracing

_BACKOFF_SECONDS, _BACKOFF_SECONDS_MAX = 2.0, 3600.0
_IN_A_TURN_MAX = 100


class TimedOut(Exception):
    """An attempt took longer than its task allows."""


class Executor:
    """Turns a hold into an ending and hands that over; None when there is nothing to write: the lease is lost, or the job
    completed itself. `mark` puts a start on record; it answers False when the lease is lost. `abandoned` is told of every
    attempt that goes on after it was given up, and of how many of them have not come back.
    """

    def __init__(
        self,
        app: Registry,
        database: AsyncDatabase,
        blocking_database: Database,
        threads: Threads,
        *,
        mark: Callable[[Hold], Awaitable[bool]],
        hand_over: Callable[[Hold, Ending | None], None],
        abandoned: Callable[[Hold, int], None] = lambda _hold, _stuck: None,
    ) -> None:
        self._mark = mark
        self._hand_over = hand_over
        self._abandoned = abandoned
        self._app = app
        self._database = database
        self._blocking_database = blocking_database
        self._threads = threads
        self._chance = app.host.chance
        self._giving_back = GivingBack(app.host.chance, app.host.monotonic)
        self._monotonic = app.host.monotonic
        #: Where a companion stands by: asked before anything is begun, whether it may be.
        self.begin: Callable[[Hold, float], bool] | None = None
        #: Set where jobs are traced.
        self.tracing: Tracing | None = None
        self._faults = app.host.faults
        self._result_bytes_max = 1_048_576
        #: The worker is about to cancel what still runs. Any other cancellation is a task's own.
        self.stopping = False
        #: Whether somebody has cancelled everything in this loop, the worker's own tasks among it: the program ends.
        self.program_ends: Callable[[], bool] = lambda: False
        self._turn = self._in_this_turn = 0
        #: Attempts that still run although their endings are handed over.
        self._left: set[Hold] = set()
        #: What runs its second job or a later one.
        self._reused: set[asyncio.Task[Any] | None] = set()

    async def run(self, hold: Hold, follow: Callable[[], Hold | None]) -> None:
        """One attempt after the other while `follow` has a next one, all in one task: to make a task takes longer than to
        run a job that does nothing. No job may notice: where one was cancelled or has changed the context, it is the last.
        """
        runner, context = asyncio.current_task(), copy_context()
        following: Hold | None = hold
        try:
            while following is not None and runner is not None:
                turn = self._turn
                await self._attempt(following, runner)
                if runner.cancelling() or (self._left and following in self._left) or _has_changed(context):
                    return
                following = follow()
                if following is not None:
                    self._reused.add(runner)
                if turn == self._turn and self._has_had_its_turn():
                    await self._let_others(following)
        finally:
            self._reused.discard(runner)

    async def _let_others(self, following: Hold | None) -> None:
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            # By something that a job before it has left behind, or at the end of the worker.
            if following is not None:
                self._hand_over(following, Released(following))
            raise

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
        raised: BaseException | None = None
        try:
            if hold.lease.mark_start and not await self._mark(hold):
                return
            began_at = self._monotonic()
            if self.begin is not None and not self.begin(hold, began_at):
                return
            hold.counts.started += 1
            hold.began_at = began_at
            if self.tracing is not None:
                self.tracing.begin(hold)
            task = self._app.tasks.get(hold.lease.task)
            misfit = self._misfit(hold, task)
            if task is None or misfit is not None:
                ending = misfit
                return
            hold.run_by(runner, self._leave_behind)
            try:
                result = await self._call(hold, task)
                ending = self._ended(hold, task, result)
            except BaseException as error:  # noqa: BLE001 - a task may raise anything, SystemExit included
                raised = error
                ending = self._judged(hold, task, error)
            if self._faults.wanted:
                self._faults.reach("after_execution")
            if hold.settled or (hold.lost is not None and not (hold.distrusted and isinstance(ending, Completed))):
                # Where only we distrusted the lease, the database decides: maybe nobody else was granted the finished job.
                _drop(hold, ending)
                ending = None
        except asyncio.CancelledError:
            # Told to stop, and the grace time is over.
            ending = None if hold.lost is not None else Released(hold)
        finally:
            if not self._left or hold not in self._left:
                self._end(hold, ending, raised)

    def _end(self, hold: Hold, ending: Ending | None, raised: BaseException | None) -> None:
        if hold.generation != forks.generation:
            # The task forked, and this is its child that came back: it would go on as a second worker.
            forks.end_child(raised)
        hold.attempt = hold.job = None  # a late loss finds nothing to cancel
        if self.tracing is None:
            self._hand_over(hold, ending)
            return
        try:
            self.tracing.end(hold, ending, raised)
        finally:
            self._hand_over(hold, ending)

    def _leave_behind(self, hold: Hold) -> None:
        """An attempt still runs some seconds after it was cancelled, by its timeout or for a lost lease: it swallows that.

        As with a thread, nobody can end it. It can write nothing more through its job, and its slot goes to the next.
        """
        runner, job = hold.attempt, hold.job
        task = self._app.tasks.get(hold.lease.task)
        if runner is None or task is None or self.stopping:
            return
        self._left.add(hold)
        runner.add_done_callback(lambda _: self._left.discard(hold))
        if job is not None:
            job.abandon(TIMED_OUT if hold.lost is None else "lease_lost")
        ending = None
        if hold.lost is None and not hold.settled:
            why = "it swallowed its cancellation, was left behind and can write nothing more"
            ending = self._failed(hold, task, f"TimedOut: timed out after {task.timeout_seconds:g} s; {why}")
        self._end(hold, ending, None)
        self._abandoned(hold, self._threads.abandon(runner))

    def _misfit(self, hold: Hold, task: Task[..., Any] | None) -> Failed | Released | None:
        """Why this job cannot even be started here."""
        lease = hold.lease
        if task is None:
            return self._giving_back.unknown_task(hold, self._app.tasks)
        if lease.fault is not None:
            # For good: another attempt reads the same text.
            return Failed(
                hold, Failure(f"its arguments: {lease.fault}. Enqueue it with values that Python can hold", "fail")
            )
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
        if not task.takes_job:
            return task.fn(**args) if limit is None else self._within(limit, task.fn(**args), hold)
        hold.job = job = Job(hold, self._database, limit)
        call = task.fn(job, **args)
        return _as_long_as(job, call if limit is None else self._within(limit, call, hold), limit)

    async def _within(self, limit: float, call: Awaitable[Any], hold: Hold) -> Any:
        scope = asyncio.timeout(limit)
        late = asyncio.get_running_loop().call_later(limit + LEAVE_SECONDS, self._leave_behind, hold)
        try:
            async with scope:
                return await call
        except TimeoutError as error:
            if scope.expired():
                raise TimedOut(f"timed out after {limit:g} s") from error
            raise
        finally:
            late.cancel()

    async def _in_thread(self, hold: Hold, task: Task[..., Any], limit: float | None) -> Any:
        job = BlockingJob(hold, self._blocking_database, limit) if task.takes_job else None
        first = () if job is None else (job,)
        outcome = self._threads.run(lambda: task.fn(*first, **hold.lease.args))
        over = "attempt_ended"
        try:
            done, _ = await asyncio.wait([outcome], timeout=limit)
            if not done:
                over = TIMED_OUT
                # Nobody can stop a thread. It goes on, but it can write nothing more.
                self._abandoned(hold, self._threads.abandon(outcome))
                raise TimedOut(f"timed out after {limit:g} s; its thread was abandoned and can write nothing more")
            return outcome.result()
        except asyncio.CancelledError:
            self._threads.abandon(outcome)
            raise
        finally:
            if job is not None:
                job.abandon(over)

    def _judged(self, hold: Hold, task: Task[..., Any], error: BaseException) -> Ending | None:
        """Whatever a task raises, even if it raises again when it is looked at: there is an ending."""
        try:
            return self._raised(hold, task, error)
        except BaseException:  # noqa: BLE001 - SystemExit included
            why = "the task raised an exception that cannot be looked at without raising another one"
            return Failed(hold, Failure(why, delay_seconds=self._usual_backoff(hold)))

    def _raised(self, hold: Hold, task: Task[..., Any], error: BaseException) -> Ending | None:
        match error:
            case asyncio.CancelledError() if hold.lost is not None:
                return None
            case Retry() | Snooze() | Cancel():
                return self._ended(hold, task, error)
            case _ if self._was_stopped(error):
                # The worker stopped it: whatever came of that is not the job's doing.
                return Released(hold)
            case asyncio.CancelledError() if asyncio.current_task() not in self._reused:
                return self._failed(hold, task, "the task was cancelled, and not by its worker: it cancelled itself")
            case StaleLease():
                # Refused somewhere inside: whoever holds the lease now will finish the job.
                hold.lose("lease_lost")
                return None
            case ResultRejected():
                return _unstorable(hold, str(error))
            case FenceBroken() | UnreadableJson():
                # For good: what was committed behind our back would be committed by every further attempt, and what a step
                # left behind would be read again.
                return Failed(hold, Failure(text_of(error), then="fail"))
            case _:
                # Cancelled by a job that ran in this task before, perhaps: by a timer that it left behind.
                interrupted = isinstance(error, asyncio.CancelledError) or is_caused_by(error, hold.failed_by or ())
                return (
                    self._giving_back.interrupted(hold, error) if interrupted else self._failed(hold, task, text_of(error))
                )

    def _was_stopped(self, error: BaseException) -> bool:
        if not asyncio.current_task().cancelling():  # type: ignore[union-attr]
            return False
        # A task whose branch ends the program would do so again and again if that used up no attempt.
        return self.stopping or (self.program_ends() and not isinstance(error, SystemExit | KeyboardInterrupt))

    def _ended(self, hold: Hold, task: Task[..., Any], result: Any) -> Ending:
        if result is None:
            return Completed(hold, "null")
        match result:
            case Retry():
                self._giving_back.went_well(hold.lease)
                after = self._backoff(hold, task) if result.after is None else delay_seconds(result.after)
                return Failed(hold, Failure(result.error, delay_seconds=after))
            case Snooze():
                self._giving_back.went_well(hold.lease)
                return Released(hold, max(SNOOZE_SECONDS_MIN, delay_seconds(result.duration)))
            case Cancel():
                return Failed(hold, Failure(result.reason, then="cancel"))
        if inspect.iscoroutine(result):
            result.close()
            return _unstorable(hold, "the task returned a coroutine, which nobody awaits; make the task `async def`")
        try:
            text = jsontext.encode(result, f"result of {task.name}")
        except Exception as error:  # noqa: BLE001 - a result may be anything
            return _unstorable(hold, str(error))
        if len(text) > self._result_bytes_max:
            return _unstorable(hold, f"it has {len(text)} characters, more than {self._result_bytes_max}")
        return Completed(hold, text)

    def _failed(self, hold: Hold, task: Task[..., Any], error: str) -> Failed:
        self._giving_back.went_well(hold.lease)
        return Failed(hold, Failure(error, delay_seconds=self._backoff(hold, task)))

    def _backoff(self, hold: Hold, task: Task[..., Any]) -> float:
        if task.backoff is not None:
            try:
                return min(max(0.0, float(task.backoff(hold.lease.attempt))), 31_536_000.0)
            except BaseException as error:  # noqa: BLE001 - the user's function must neither lose the job nor end the worker
                events.emit("backoff_failed", task=task.name, error=text_of(error)[:500])
        return self._usual_backoff(hold)

    def _usual_backoff(self, hold: Hold) -> float:
        attempt = hold.lease.attempt
        # Jittered, so that jobs which failed together do not come back together.
        doubled = min(_BACKOFF_SECONDS_MAX, _BACKOFF_SECONDS * 2.0 ** min(attempt - 1, 20))
        return float(doubled * self._chance.uniform(0.75, 1.25))


def _drop(hold: Hold, ending: Ending | None) -> None:
    """A job that has completed itself stays so; what its task raised then is written nowhere but in the log."""
    if hold.settled and isinstance(ending, Failed):
        lease, error = hold.lease, ending.failure.error[:500]
        events.emit("failed_after_completion", job_id=lease.job_id, task=lease.task, token=lease.fencing_token, error=error)


def _unstorable(hold: Hold, why: str) -> Failed:
    """For good: the task has done its work, and run again it would do it again and come to the same end."""
    return Failed(hold, Failure(f"its result cannot be stored: {storable(why)}. {RETURN_LESS}", then="fail"))


def _has_changed(context: Context) -> bool:
    try:
        return copy_context() != context
    except Exception:  # noqa: BLE001 - values that cannot be compared
        return True


async def _as_long_as(job: Job, call: Awaitable[Any], limit: float | None) -> Any:
    """When the attempt is over, nothing more is written through its job: neither by branches that it has left behind, nor by
    a task that does not mind being cancelled.
    """
    timer = None if limit is None else asyncio.get_running_loop().call_later(limit, job.abandon, TIMED_OUT)
    try:
        return await call
    except Exception as error:
        # Whatever it raises then: to cut its session makes a statement of it fail as if the server were gone.
        if job.timed_out and not isinstance(error, TimedOut):
            raise TimedOut(f"timed out after {limit:g} s") from error
        raise
    finally:
        if timer is not None:
            timer.cancel()
        job.abandon("attempt_ended")
