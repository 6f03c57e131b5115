"""Run jobs in the test's own process, with the real worker, without waiting."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import copy
import functools
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from faultline.attempt.outcomes import Outcome
from faultline.core.errors import ConfigError, JobFailed
from faultline.core.model import JobState
from faultline.store import testing, verbs

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Iterator

    from faultline.app.application import Faultline
    from faultline.app.handle import JobHandle
    from faultline.app.tasks import Task
    from faultline.core.model import Submission
    from faultline.store.statement import Statement
    from faultline.store.testing import FrozenTime

T = TypeVar("T")

TIMEOUT_SECONDS = 30.0
_PAUSE_MIN, _PAUSE_MAX = 0.001, 0.02

#: Set while jobs run here: the same drain runs what they enqueue, not a second one inside it.
_draining: contextvars.ContextVar[bool] = contextvars.ContextVar("draining", default=False)


@dataclass(frozen=True, slots=True)
class Drained:
    """How the jobs ended. `rescheduled`: failed attempts that will be followed by another."""

    succeeded: int = 0
    failed: int = 0
    rescheduled: int = 0
    cancelled: int = 0
    #: The text of every failed attempt, with the name of its task.
    errors: tuple[str, ...] = ()
    #: Why programs did not go on, with the names of their tasks: their code does not fit their history.
    changed: tuple[str, ...] = ()


def drain(
    app: Faultline,
    queue: str | None = None,
    *,
    concurrency: int = 1,
    advancing: FrozenTime | None = None,
    timeout: float = TIMEOUT_SECONDS,
    test_database: bool = False,
) -> Drained:
    """Run all due jobs, and the jobs that these enqueue, until none is due. Expired leases are reaped first.

    One job of a queue runs at a time, in the order of the queue, so that a test is repeatable; jobs that wait for each
    other need a higher `concurrency`. Without a queue, all queues are drained.

    Delayed jobs and later attempts are not run: they are due later. Jobs that wait for a signal stay suspended. With
    `advancing`, frozen time moves on to the next due job, until no job is queued: sleeps take a moment, and waits time out.

    Refused in a database whose name does not say that it is for tests: it would run jobs that are not the test's.
    `test_database=True` says it instead.
    """
    refuse_in_event_loop("drain", "await adrain(app)")
    drained = adrain(app, queue, concurrency=concurrency, advancing=advancing, timeout=timeout, test_database=test_database)
    return _as_in_a_worker().run(asyncio.run, _closing(app, drained))


async def adrain(
    app: Faultline,
    queue: str | None = None,
    *,
    concurrency: int = 1,
    advancing: FrozenTime | None = None,
    timeout: float = TIMEOUT_SECONDS,  # noqa: ASYNC109 - the twin of drain()
    test_database: bool = False,
) -> Drained:
    """`drain` for async programs."""
    if not test_database:
        _refuse_unless_for_tests(await _ask(app, testing.database()))
    within = asyncio.timeout(timeout)
    outside = _draining.set(True)
    try:
        async with within:
            await declare_topics(app)
            return await _drain(app, queue, concurrency, advancing)
    except TimeoutError as error:
        if not within.expired():
            raise
        # The worker released the running jobs when it ended, so they are among these.
        left = await _ask(app, testing.due_queues(queue))
        raise AssertionError(f"the jobs did not end within {timeout:g} s; unfinished in queue {', '.join(left)}") from error
    finally:
        _draining.reset(outside)


def _refuse_unless_for_tests(name: str) -> None:
    if not testing.is_for_tests(name):
        raise ConfigError(
            f"nothing is run in {name}: its jobs are not this test's, and its name contains neither "
            f"{' nor '.join(testing.TEST_NAMES)}. Use a scratch_database(), or pass test_database=True if it is one"
        )


async def declare_topics(app: Faultline) -> None:
    """Store the subscriptions of the tasks, as a worker does when it starts: what is published from now on gets its jobs."""
    wanted = app.subscriptions()
    if wanted:
        await asyncio.to_thread(app.database.run_all, wanted)


async def _drain(app: Faultline, queue: str | None, concurrency: int, advancing: FrozenTime | None) -> Drained:
    ends: Counter[str] = Counter()
    errors: list[str] = []
    changed: list[str] = []
    while True:
        ends.update(reaped.state for reaped in await _ask(app, verbs.reap()) if reaped.state is JobState.FAILED)
        expired = await _ask(app, verbs.expire())
        ends[JobState.CANCELLED] += len(expired)
        await asyncio.to_thread(resolve_all, app)
        queues = await _ask(app, testing.due_queues(queue))
        if queues:
            worker_id = await _work(app, queues, concurrency)
            tally = await _ask(app, testing.tally(worker_id))
            ends += tally.counts
            errors += tally.errors
            changed += tally.changed
        elif advancing is not None and (due := await _ask(app, testing.next_due(queue))) is not None:
            advancing.advance_to(due)
        else:
            counts = (ends["succeeded"], ends["failed"], ends["queued"], ends["cancelled"])
            return Drained(*counts, tuple(errors), tuple(changed))


def resolve_all(app: Faultline) -> None:
    """Wake the jobs of flows that can go on, and cancel children that are to be. Workers do so about once a second."""
    while True:
        resolved = app.database.run(verbs.resolve())
        sweeps_left = app.database.run(verbs.sweep())
        if not resolved.woken and not resolved.left_over and not sweeps_left:
            return


async def _work(app: Faultline, queues: list[str], concurrency: int) -> str:
    """Run a worker until it has nothing left to do."""
    async with app.worker(dict.fromkeys(queues, concurrency)) as worker:
        pause = _PAUSE_MIN
        while await _ask(app, testing.is_busy(worker.id, queues)):
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _PAUSE_MAX)
    return worker.id


async def _ask(app: Faultline, statement: Statement[T]) -> T:
    """Ask on a connection that is kept from one drain to the next: opening one would take the most time."""
    return await asyncio.to_thread(app.database.run, statement)


@contextlib.contextmanager
def inline(app: Faultline, *, test_database: bool = False) -> Iterator[None]:
    """Inside the block, every `enqueue` also runs the job at once in this process, and raises what its task raised.

    The job is a real one: it is enqueued, claimed, run and completed. Jobs that it enqueues are run too, before the
    outermost `enqueue` returns. A job that joins a transaction (`using`), or is not due, waits for a `drain`. The databases
    that `drain` refuses are refused here, unless `test_database=True`.
    """
    raised: list[Exception] = []
    enqueue_many, aenqueue_many = app.enqueue_many, app.aenqueue_many
    if not test_database:
        _refuse_unless_for_tests(app.database.run(testing.database()))
    run = functools.partial(adrain, test_database=True)

    def enqueue_and_run(submissions: Iterable[Submission]) -> list[JobHandle[Any]]:
        handles = enqueue_many(submissions)
        if not _draining.get():
            _raise_first(_blocking(lambda: _closing(app, run(_watched(app, raised)))), raised)
        return handles

    async def aenqueue_and_run(submissions: Iterable[Submission]) -> list[JobHandle[Any]]:
        handles = await aenqueue_many(submissions)
        if not _draining.get():
            _raise_first(await run(_watched(app, raised)), raised)
        return handles

    # Replaces the methods: production needs no hook here, and enqueueing is its hot path.
    vars(app).update(enqueue_many=enqueue_and_run, aenqueue_many=aenqueue_and_run)
    try:
        yield
    finally:
        del vars(app)["enqueue_many"], vars(app)["aenqueue_many"]


def _watched(app: Faultline, raised: list[Exception]) -> Faultline:
    """A copy of the application for the worker, whose tasks also note here what they raise."""
    _ = app.database  # shared by both; the test's application closes it
    watched = copy.copy(app)
    watched.tasks = {}
    for name, task in app.tasks.items():
        watched.tasks[name] = copy.copy(task)
        watched.tasks[name].fn = _noting(task, raised)
    return watched


def _noting(task: Task[..., Any], raised: list[Exception]) -> Callable[..., Any]:
    @functools.wraps(task.fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return task.fn(*args, **kwargs)
        except Outcome:
            raise
        except Exception as error:
            raised.append(error)
            raise

    @functools.wraps(task.fn)
    async def acall(*args: Any, **kwargs: Any) -> Any:
        try:
            return await task.fn(*args, **kwargs)
        except Outcome:
            raise
        except Exception as error:
            raised.append(error)
            raise

    return acall if task.is_async else call


def _raise_first(drained: Drained, raised: list[Exception]) -> None:
    """The task's own error if there is one: a result that is not JSON fails a job without one."""
    first = next(iter(raised), None)
    raised.clear()
    if first is not None:
        raise first
    if drained.errors:
        raise JobFailed(f"a job failed: {drained.errors[0]}")


async def _closing(app: Faultline, running: Coroutine[Any, Any, T]) -> T:
    """The event loop ends with this call, so close what the tasks opened in it."""
    try:
        return await running
    finally:
        if "async_database" in vars(app):
            await app.async_database.close()


def _as_in_a_worker() -> contextvars.Context:
    """Jobs have no context variables of the test. With those of asgiref, below `sync_to_async(drain)`, the blocking code of
    async jobs would go to the thread that waits here for the jobs; what must wait for that thread is refused by asgiref.
    """
    context = contextvars.Context()
    asgiref = sys.modules.get("asgiref.sync")
    if asgiref is not None and asgiref.SyncToAsync.deadlock_context.get(False):
        context.run(asgiref.SyncToAsync.deadlock_context.set, True)
    return context


def _blocking(start: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run it to its end, also inside a running event loop, which a blocking `enqueue` blocks anyway."""
    if not _in_event_loop():
        return asyncio.run(start())
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(start())).result()


def refuse_in_event_loop(what: str, instead: str) -> None:
    if _in_event_loop():
        raise ConfigError(f"{what} blocks, but an event loop is running here; write: {instead}")


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
