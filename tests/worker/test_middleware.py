"""Middleware is part of the attempt: its errors, its time and its cancellation are those of the task."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from faultline import BlockingJob, Faultline, Job, Retry
from faultline.testing import drain
from tests.waiting import auntil
from tests.worker.working import logged, results, work

if TYPE_CHECKING:
    import io
    from collections.abc import Awaitable, Callable

    from faultline import Attempt, JobHandle
    from tests.driver import Driver


def test_middleware_goes_around_every_attempt_the_first_outermost(app: Faultline) -> None:
    order: list[str] = []

    @app.middleware
    async def outer(job: Attempt, call: Callable[[], Awaitable[Any]]) -> Any:
        order.append(f"outer {job.task}")
        try:
            return [await call()]
        finally:
            order.append("outer ends")

    @app.middleware
    async def inner(job: Attempt, call: Callable[[], Awaitable[Any]]) -> Any:
        order.append(f"inner {job.id}")
        return await call()

    @app.middleware
    def in_thread(job: Attempt, call: Callable[[], Any]) -> Any:
        order.append(f"in {threading.current_thread().name.rstrip('0123456789')}")
        return call()

    @app.task
    async def on_loop(n: int) -> int:
        order.append("task")
        return n

    @app.task
    def blocking(job: BlockingJob, n: int) -> int:
        order.append(f"task {job.id}")
        return n

    first: JobHandle[Any] = on_loop.enqueue(1)
    second: JobHandle[Any] = blocking.enqueue(2)
    assert drain(app).succeeded == 2

    assert (first.result(), second.result()) == ([1], [2])
    assert order == [
        *("outer on_loop", f"inner {first.id}", "task", "outer ends"),
        *("outer blocking", f"inner {second.id}", "in faultline-task-", f"task {second.id}", "outer ends"),
    ]


@pytest.mark.parametrize("raised", [ValueError("from the middleware"), SystemExit("from the middleware")])
def test_what_middleware_raises_is_what_the_task_raised(app: Faultline, raised: BaseException) -> None:
    ran: list[int] = []

    @app.middleware
    async def broken(job: Attempt, call: Callable[[], Awaitable[Any]]) -> Any:
        if job.attempt == 1:
            raise raised
        return await call()

    @app.task(max_attempts=2, backoff=lambda _: 0)
    async def plain(job: Job) -> None:
        ran.append(job.attempt)

    @app.task(max_attempts=2, backoff=lambda _: 0)
    def blocking() -> None:
        ran.append(2)

    plain.enqueue()
    blocking.enqueue()
    drained = drain(app)

    assert (drained.succeeded, drained.rescheduled) == (2, 2)
    assert all("from the middleware" in error for error in drained.errors)
    assert ran == [2, 2]


def test_an_outcome_passes_through_middleware(app: Faultline) -> None:
    passed: list[str] = []

    @app.middleware
    async def looks_on(job: Attempt, call: Callable[[], Awaitable[Any]]) -> Any:
        try:
            return await call()
        except Retry as error:
            passed.append(error.error)
            raise

    @app.task(max_attempts=1)
    async def again() -> None:
        raise Retry(0, error="not yet")

    handle = again.enqueue()
    drain(app)

    assert passed == ["not yet"]
    assert "not yet" in str(handle.job().last_error)


def test_a_flow_that_suspends_passes_through_middleware_without_an_ending(app: Faultline) -> None:
    seen: list[str] = []

    @app.middleware
    async def looks_on(job: Attempt, call: Callable[[], Awaitable[Any]]) -> Any:
        try:
            result = await call()
        except Exception:
            seen.append("error")
            raise
        seen.append(f"{job.task} returned")
        return result

    @app.task
    async def child() -> int:
        return 7

    @app.task
    async def parent(job: Job) -> int:
        return await job.call(child)

    handle = parent.enqueue()
    drain(app)

    assert handle.result() == 7
    assert seen == ["child returned", "parent returned"]


def test_the_time_of_middleware_counts(app: Faultline, log: io.StringIO) -> None:
    let_go = threading.Event()

    @app.middleware
    async def slow(job: Attempt, call: Callable[[], Awaitable[Any]]) -> Any:
        if job.task == "quick":
            await asyncio.Event().wait()
        return await call()

    @app.task(timeout=0.2, max_attempts=1)
    async def quick() -> None: ...

    @app.task(timeout=0.2, max_attempts=1)
    def stuck(job: BlockingJob) -> bool:
        let_go.wait(60)
        return job.lease_lost

    errors = results(app, [quick.enqueue(), stuck.enqueue()])
    let_go.set()

    assert all("TimedOut: timed out after 0.2 s" in str(error) for error in errors)
    assert len(logged(log, "thread_abandoned")) == 1


def test_a_lost_lease_cancels_middleware_and_calls_no_observer(app: Faultline, queue: Driver) -> None:
    seen: list[str] = []

    @app.middleware
    async def noticed(job: Attempt, call: Callable[[], Awaitable[Any]]) -> Any:
        try:
            return await call()
        except asyncio.CancelledError:
            seen.append(f"cancelled, lost: {job.lease_lost}")
            raise

    @app.on_success
    @app.on_retry
    @app.on_failure
    async def ended(job: Attempt, *error: object) -> None:
        seen.append("ended")

    @app.task
    async def endless() -> None:
        seen.append("started")
        await asyncio.Event().wait()

    handle = endless.enqueue()

    async def cancelled() -> None:
        await auntil(lambda: seen)
        await app.acancel(handle.id)
        await auntil(lambda: len(seen) > 1)

    work(app, cancelled)

    assert seen == ["started", "cancelled, lost: True"]


def test_a_worker_that_stops_releases_a_job_inside_middleware(app: Faultline, queue: Driver) -> None:
    started = asyncio.Event()

    @app.middleware
    async def around(job: Attempt, call: Callable[[], Awaitable[Any]]) -> Any:
        return await call()

    @app.task
    async def endless() -> None:
        started.set()
        await asyncio.Event().wait()

    handle = endless.enqueue()
    work(app, started.wait, grace_seconds=0.0)

    assert queue.state(handle.id) == "queued"
    assert queue.job(handle.id).attempt == 0
