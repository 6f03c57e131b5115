"""Run one attempt and return how it ended. Whatever a task does, the result is an ending, and the worker goes on."""

from __future__ import annotations

import asyncio
import inspect
import threading
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any

from faultline.app.blocking_job import BlockingJob
from faultline.app.job import Job
from faultline.attempt.attempt import TIMED_OUT, Attempt
from faultline.core import events, forks
from faultline.core.bounds import ARGS_BYTES_MAX
from faultline.core.model import Reason
from faultline.core.running import running
from faultline.history.ending import RunEnded
from faultline.worker.base.background_tasks import cancel
from faultline.worker.base.threads import Threads
from faultline.worker.lease.held_lease import LEAVE_SECONDS
from faultline.worker.lease.stop import log_stopped
from faultline.worker.run.batches import BatchCalls
from faultline.worker.run.flow_judge import FlowJudge
from faultline.worker.run.judge import Judge
from faultline.worker.run.middleware import WrappedTasks, chained
from faultline.worker.run.processes.answers import Returned, value_of
from faultline.worker.run.processes.task_processes import TaskProcesses, cpus
from faultline.worker.write.endings import Completed, Failed, Released, TimedOut

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from faultline.app.registry import Registry
    from faultline.app.tasks import Task
    from faultline.core.model import Lease
    from faultline.store.database_facts import Facts
    from faultline.worker.base.databases import Databases
    from faultline.worker.lease.held_lease import HeldLease, Source
    from faultline.worker.lease.lease_table import Leases
    from faultline.worker.lease.stop import Stop
    from faultline.worker.run.tracing import Tracer
    from faultline.worker.write.completer import Completer
    from faultline.worker.write.endings import Ending
    from faultline.worker.write.observers import Observers
    from faultline.worker.write.release_unstarted import Unstarted
    from faultline.worker.write.start_records import Marks

_IN_A_TURN_MAX = 100
_set_running, _reset_running = running.set, running.reset


class Executor:
    """Turns a hold into an ending for the completer; no ending if the lease is lost or the job completed itself."""

    def __init__(
        self,
        app: Registry,
        databases: Databases,
        *,
        marks: Marks,
        leases: Leases,
        completer: Completer,
        unstarted: Unstarted,
        stop: Stop,
    ) -> None:
        self._app = app
        self._tasks = app.tasks
        self._databases = databases
        self._marks = marks
        self._leases = leases
        self._completer = completer
        self._unstarted = unstarted
        self._stop = stop
        self._judge = Judge(app.host, stop)
        self._args_bytes_max = ARGS_BYTES_MAX
        self._flows = FlowJudge(self._judge, databases.engine, app.tasks, app.host.chance)
        self._threads = Threads()
        self._batches = BatchCalls(self._threads, stop, self.seen)
        #: Made when a task first needs one; and how many at once.
        self._processes: TaskProcesses | None = None
        self.task_processes: int | None = None
        self._host = app.host
        self._monotonic = app.host.monotonic
        self._faults = app.host.faults
        #: What the lifespans of the worker have opened.
        self.state: dict[str, Any] = {}
        #: None: nobody observes how jobs start and end.
        self.observers: Observers | None = None
        #: Async middleware, which also goes around tasks that do not run on the event loop.
        self._around: list[Callable[..., Any]] = []
        #: None: jobs are not traced.
        self.tracing: Tracer | None = None
        self._turn = self._in_this_turn = 0
        #: Started and not ended, and where each came from.
        self._running: dict[HeldLease, Source] = {}
        self._idle = asyncio.Event()
        #: The program ends: do not wait for running jobs.
        self.in_a_hurry = asyncio.Event()
        self._runners: set[asyncio.Task[None]] = set()
        #: Attempts that still run although their endings went to the completer.
        self._left: set[HeldLease] = set()
        #: Asyncio tasks that run their second job or a later one.
        self._reused: set[asyncio.Task[Any] | None] = set()

    def know(self, facts: Facts) -> None:
        self._judge.result_bytes_max = facts.result_bytes_max
        self._args_bytes_max = facts.args_bytes_max
        self._set_limits()

    def _set_limits(self) -> None:
        if self._processes is not None:
            self._processes.result_bytes_max = self._judge.result_bytes_max
            self._processes.args_bytes_max = self._args_bytes_max

    def wrap(self, middleware: list[Callable[..., Any]]) -> None:
        """Put this around every attempt."""
        if middleware:
            self._tasks = WrappedTasks(self._app.tasks, middleware)
            self._around = [one for one in middleware if inspect.iscoroutinefunction(one)]

    def seen(self, hold: HeldLease) -> Attempt:
        """A job whose task does not take it, as hooks see it: it can write nothing."""
        task, began_at = self._app.tasks.get(hold.lease.task), hold.began_at
        limit = None if task is None or began_at is None else task.timeout_seconds
        return Attempt(hold, self._host, None if limit is None else limit + (began_at or 0.0) - self._monotonic())

    def start(self, hold: HeldLease, source: Source) -> None:
        """Run this hold, and after it what the source has next."""
        self._running[hold] = source
        runner = asyncio.get_running_loop().create_task(self._run(hold, source))
        self._runners.add(runner)
        runner.add_done_callback(self._runners.discard)

    async def idle(self, seconds: float) -> None:
        """Wait for running jobs at most so long, and not at all in a hurry."""
        if self._running:
            self._idle.clear()
            waiting = [asyncio.create_task(event.wait()) for event in (self._idle, self.in_a_hurry)]
            try:
                await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in waiting:
                    task.cancel()

    async def stop(self) -> int:
        """Cancel running jobs and release them. Returns how many attempts go on nevertheless."""
        self._stop.cancels_jobs = True
        log_stopped(self._running, self._monotonic())
        await cancel(self._runners)
        left = sum(not runner.done() for runner in self._runners)
        for hold in self._running:
            if left and hold.attempt is not None:
                # It swallows its cancellation. The worker does not wait for it, and refuses whatever it writes.
                events.emit("attempt_left_behind", job_id=hold.lease.job_id, task=hold.lease.task)
                hold.lose(Reason.LEASE_LOST)
            # Or it was cancelled before its first step, so nothing released it.
            self._completer.put(Released(hold))
        return left

    def abandon(self) -> None:
        """Cancel running jobs and wait for nothing. Their leases are not renewed."""
        self._stop.cancels_jobs = True
        for runner in self._runners:
            runner.cancel()

    async def end(self) -> None:
        """End the processes of tasks."""
        if self._processes is not None:
            await self._processes.close()

    def close(self) -> None:
        self._threads.close()

    async def _run(self, hold: HeldLease, source: Source) -> None:
        """Run one attempt after the other in one asyncio task: making a task takes longer than running a job that does
        nothing. No job may notice: after one that was cancelled or changed the context, the task ends.
        """
        runner, context = asyncio.current_task(), copy_context()
        following: HeldLease | None = hold
        try:
            while following is not None and runner is not None:
                turn = self._turn
                await self._attempt(following, runner)
                if runner.cancelling() or (self._left and following in self._left) or _has_changed(context):
                    return
                following = source.follow()
                if following is not None:
                    self._running[following] = source
                    self._reused.add(runner)
                if turn == self._turn and self._has_had_its_turn():
                    await self._let_others(following)
        finally:
            self._reused.discard(runner)

    async def _let_others(self, following: HeldLease | None) -> None:
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            # By something that an earlier job left behind, or at the end of the worker.
            if following is not None:
                self._hand_over(following, Released(following))
            raise

    def _has_had_its_turn(self) -> bool:
        """Jobs that never wait must not block the loop."""
        self._in_this_turn += 1
        if self._in_this_turn == 1:
            asyncio.get_running_loop().call_soon(self._next_turn)
        return self._in_this_turn > _IN_A_TURN_MAX

    def _next_turn(self) -> None:
        self._turn += 1
        self._in_this_turn = 0

    async def _attempt(self, hold: HeldLease, runner: asyncio.Task[Any]) -> None:  # noqa: C901, PLR0912 - see below
        """From the lease to its ending, in one coroutine: every further one would cost time for every job."""
        ending: Ending | None = None
        raised: BaseException | None = None
        try:
            lease = hold.lease
            if lease.needs_start_record and not await self._marks.mark(hold):
                return
            began_at = self._monotonic()
            shared = self._leases.shared
            if shared is not None and not shared.begin(hold, began_at):
                return
            hold.counts.started += 1
            hold.began_at = began_at
            if self.tracing is not None:
                self.tracing.begin(hold)
            task = self._tasks.get(lease.task)
            if task is None:
                ending = self._judge.unknown(hold, self._app.tasks)
                return
            ending = self._judge.misfit(hold, task)
            if lease.in_flow and ending is None:
                ending = await self._flow_misfit(hold, task)
            if ending is not None:
                return
            hold.run_by(runner, self)
            outside = _set_running(hold)
            try:
                result = await self._call(hold, task)
                ending = Completed(hold, "null")
                if result is not None or task.results.are_read or hold.unawaited:
                    ending = self._judge.returned(await _begun(hold), task, result)
            except BaseException as error:  # noqa: BLE001 - a task may raise anything, SystemExit included
                raised = error
                ending = await self._raised(hold, task, error, runner)
            _reset_running(outside)
            if hold.job is not None and hold.job.program is not None:
                ending = await self._flows.judged(hold, task, hold.job.program, ending, raised)
            if self._faults.wanted:
                self._faults.reach("after_execution")
            if hold.completed or (hold.lost is not None and not (hold.distrusted and isinstance(ending, Completed))):
                # If only this worker distrusts the lease, the database decides: maybe nobody else claimed the finished job.
                _drop(hold, ending)
                ending = None
        except asyncio.CancelledError:
            # The worker stops, and the grace time is over.
            ending = None if hold.lost is not None else Released(hold)
        finally:
            if not self._left or hold not in self._left:
                self._end(hold, ending, raised)

    async def _raised(
        self, hold: HeldLease, task: Task[..., Any], error: BaseException, runner: asyncio.Task[Any]
    ) -> Ending | None:
        if self.observers is not None and hold not in self._left:
            hold.raised = error
        return self._judge.raised(await _begun(hold), task, error, first=runner not in self._reused)

    def _end(self, hold: HeldLease, ending: Ending | None, raised: BaseException | None) -> None:
        if hold.generation != forks.generation:
            # This is a child that the task forked. It must not go on as a second worker.
            forks.end_child(raised)
        hold.attempt = hold.job = None  # a late loss finds nothing to cancel
        if self.tracing is None:
            self._hand_over(hold, ending)
            return
        try:
            self.tracing.end(hold, ending, raised)
        finally:
            self._hand_over(hold, ending)

    def _hand_over(self, hold: HeldLease, ending: Ending | None) -> None:
        if hold.began_at is not None:
            hold.counts.ran.append(self._monotonic() - hold.began_at)
        source = self._running.pop(hold)
        if ending is not None:
            hold.ending = True
            self._leases.ended(hold)
            if source.computing and source.within is None and self._computed(hold):
                self._completer.put_with_others(ending)
            else:
                self._completer.put(ending)
        elif self._leases.in_doubt(hold):
            self._unstarted.release_if_held([hold])
        else:
            self._completer.nothing_to_write(hold)
        source.finished(hold.lease)
        if not self._running:
            self._idle.set()

    def _computed(self, hold: HeldLease) -> bool:
        task = self._app.tasks.get(hold.lease.task)
        return task is not None and task.processes is not None

    async def _flow_misfit(self, hold: HeldLease, task: Task[..., Any]) -> Ending | None:
        self._completer.sees_flows = True
        return await self._flows.misfit(hold, task)

    def leave_behind(self, hold: HeldLease) -> None:
        """An attempt swallows its cancellation, by its timeout or for a lost lease, and still runs some seconds later.

        Like a thread, it cannot be ended. It can write nothing more through its job, and its slot goes to the next one.
        """
        runner, job = hold.attempt, hold.job
        task = self._tasks.get(hold.lease.task)
        if runner is None or task is None or self._stop.cancels_jobs:
            return
        self._left.add(hold)
        runner.add_done_callback(lambda _: self._left.discard(hold))
        if job is not None:
            job.abandon(TIMED_OUT if hold.lost is None else "lease_lost")
        ending = None
        if hold.lost is None and not hold.completed:
            why = "it ignored its cancellation, was abandoned and can write nothing more"
            ending = self._judge.failed_by(hold, task, TimedOut(f"timed out after {task.timeout_seconds:g} s; {why}"))
        self._end(hold, ending, None)
        self._stop.is_stuck(hold, self._threads.abandon(runner), is_async=task.is_async)

    def _call(self, hold: HeldLease, task: Task[..., Any]) -> Awaitable[Any]:
        if events.are_detailed():
            events.emit_detail("execution_started", job_id=hold.lease.job_id, token=hold.lease.fencing_token)
        if self._faults.wanted:
            self._faults.reach("before_execution")
        if self.observers is not None:
            self.observers.started(hold)
        limit = task.timeout_seconds
        if not task.is_async:
            return self._elsewhere(hold, task, limit)
        args = hold.lease.args
        if not task.takes_job:
            return task.fn(**args) if limit is None else self._within(limit, task.fn(**args), hold)
        hold.job = job = Job(hold, self._databases.jobs, limit)
        job.run_by(asyncio.current_task())
        call = task.fn(job, **args)
        return _as_long_as(job, call if limit is None else self._within(limit, call, hold), limit)

    async def _within(self, limit: float, call: Awaitable[Any], hold: HeldLease) -> Any:
        scope = asyncio.timeout(limit)
        late = asyncio.get_running_loop().call_later(limit + LEAVE_SECONDS, self.leave_behind, hold)
        try:
            async with scope:
                return await call
        except TimeoutError as error:
            if scope.expired():
                # With the frames of the cancelled call: they say where the task was when its time was over.
                cut = None if error.__cause__ is None else error.__cause__.__traceback__
                raise TimedOut(f"timed out after {limit:g} s").with_traceback(cut) from None
            raise
        finally:
            late.cancel()

    def _elsewhere(self, hold: HeldLease, task: Task[..., Any], limit: float | None) -> Awaitable[Any]:
        """Not on the event loop. Async middleware stays there; what the task takes of the time, its own limit says."""
        if task.batch is not None:
            at_once = getattr(self._running[hold], "concurrency", task.batch.size)
            return self._batches.join(hold, task, task.batch, at_once)
        if task.processes is not None:
            return self._in_process(hold, task, limit)
        if not self._around:
            return self._in_thread(hold, task, limit)
        call = chained(self.seen(hold), lambda: self._in_thread(hold, task, limit), self._around)
        return call if limit is None else self._within(limit, call, hold)

    async def _in_process(self, hold: HeldLease, task: Task[..., Any], limit: float | None) -> Any:
        """Waiting for a free process takes nothing of its time."""
        source, processes = self._running[hold], self._processes
        if processes is None:
            size, tasks = self.task_processes or cpus(), self._app.tasks.values()
            self._processes = processes = TaskProcesses(size, tasks, ahead=not self._around)
            self._set_limits()
        if not self._around:
            return await processes.run(hold, task, limit, source)
        async with processes.one(source) as process:
            call = chained(
                self.seen(hold), lambda: _read(processes.run_in(process, hold, task, limit, source), task), self._around
            )
            return await (call if limit is None else self._within(limit, call, hold))

    async def _in_thread(self, hold: HeldLease, task: Task[..., Any], limit: float | None) -> Any:
        hold.job = job = BlockingJob(hold, self._databases.blocking_jobs, limit) if task.takes_job else None
        outcome = self._threads.run(lambda: _run_in_thread(job, task, hold.lease))
        over = "attempt_ended"
        try:
            done, _ = await asyncio.wait([outcome], timeout=limit)
            if not done:
                over = TIMED_OUT
                # A thread cannot be stopped. It goes on, but can write nothing more.
                self._stop.is_stuck(hold, self._threads.abandon(outcome), is_async=False)
                why = f"timed out after {limit:g} s; its thread was abandoned and can write nothing more"
                raise TimedOut(why).with_traceback(self._threads.stack(outcome))
            return outcome.result()
        except asyncio.CancelledError as error:
            stuck = self._threads.abandon(outcome)
            if hold.lost is None and not self._stop.cancels_jobs and not outcome.done():
                # The time is up for it and the middleware around it.
                over = TIMED_OUT
                self._stop.is_stuck(hold, stuck, is_async=False)
                error.with_traceback(self._threads.stack(outcome))
            raise
        finally:
            if job is not None:
                job.abandon(over)


async def _read(call: Awaitable[Any], task: Task[..., Any]) -> Any:
    """The value itself, for middleware."""
    found = await call
    return value_of(found, task) if isinstance(found, Returned) else found


def _run_in_thread(job: BlockingJob | None, task: Task[..., Any], lease: Lease) -> Any:
    if job is None:
        return task.fn(**lease.args)
    job.run_by(threading.current_thread())
    try:
        return task.fn(job, **lease.args)
    finally:
        if job.is_streaming:
            job.flush_streams()


def _drop(hold: HeldLease, ending: Ending | None) -> None:
    """A job that completed itself stays completed. What its task raised afterwards is only logged."""
    if hold.completed and isinstance(ending, Failed):
        lease, error = hold.lease, ending.failure.error[:500]
        events.emit("failed_after_completion", job_id=lease.job_id, task=lease.task, token=lease.fencing_token, error=error)


async def _begun(hold: HeldLease) -> HeldLease:
    """Let the calls begin that the task gave to asyncio tasks at its very end: they are not forgotten."""
    if hold.unawaited:
        await asyncio.sleep(0)
    return hold


def _has_changed(context: Context) -> bool:
    try:
        return copy_context() != context
    except Exception:  # noqa: BLE001 - values that cannot be compared
        return True


async def _as_long_as(job: Job, call: Awaitable[Any], limit: float | None) -> Any:
    """After the attempt, nothing more is written through its job: neither by branches that it left behind, nor by a task
    that ignores its cancellation.
    """
    timer = None if limit is None else asyncio.get_running_loop().call_later(limit, job.abandon, TIMED_OUT)
    try:
        return await call
    except (Exception, RunEnded) as error:
        # Its session was cut, so its statement fails as if the server were gone.
        if job.timed_out and not isinstance(error, TimedOut):
            raise TimedOut(f"timed out after {limit:g} s").with_traceback(error.__traceback__) from None
        raise
    finally:
        if timer is not None:
            timer.cancel()
        try:
            if job.is_streaming:
                await job.flush_streams()
        finally:
            job.abandon("attempt_ended")
