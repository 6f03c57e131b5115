"""Observers see what happened to a job, once it is written, and change nothing by what they do."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from faultline import Faultline, Job, JobFailed
from faultline.testing import drain
from faultline.worker.write import observers
from tests.waiting import auntil
from tests.worker.working import logged, results, work

if TYPE_CHECKING:
    import io
    from collections.abc import Awaitable, Callable

    from faultline import Attempt
    from tests.driver import Driver


def test_observers_are_called_in_order_once_it_is_written(app: Faultline, queue: Driver) -> None:
    seen: list[str] = []

    @app.on_start
    async def start(job: Attempt) -> None:
        seen.append(f"start {job.task} {job.attempt} of {job.max_attempts}")

    @app.on_success
    def success(job: Attempt) -> None:
        seen.append(f"{queue.state(job.id)} in {threading.current_thread().name.rstrip('0123456789')}")

    @app.on_retry
    async def retry(job: Attempt, error: BaseException) -> None:
        seen.append(f"retry {error!r}, traced: {error.__traceback__ is not None}")

    @app.on_failure
    async def failure(job: Attempt, error: BaseException) -> None:
        seen.append(f"failure {error!r}")

    @app.task(max_attempts=2, backoff=lambda _: 0)
    async def doomed() -> None:
        raise ValueError("no such order")

    @app.task
    def fine() -> None: ...

    doomed.enqueue()
    drain(app)
    assert seen == [
        "start doomed 1 of 2",
        "retry ValueError('no such order'), traced: True",
        "start doomed 2 of 2",
        "failure ValueError('no such order')",
    ]
    seen.clear()
    fine.enqueue()
    drain(app)
    assert seen == ["start fine 1 of 5", "succeeded in faultline-task-"]


def test_a_job_that_completes_itself_has_succeeded_for_observers(app: Faultline) -> None:
    seen: list[str] = []

    @app.on_success
    async def success(job: Attempt) -> None:
        seen.append(job.task)

    @app.task
    async def own(job: Job) -> None:
        async with job.transaction():
            pass

    own.enqueue()
    drain(app)

    assert seen == ["own"]


def test_a_job_whose_last_worker_died_is_a_failure_for_observers(app: Faultline, queue: Driver) -> None:
    seen: list[tuple[str, str, str, str]] = []

    @app.on_failure
    async def failure(job: Attempt, error: BaseException) -> None:
        seen.append((job.task, job.idempotency_key, type(error).__name__, str(error)))

    @app.task
    async def deadly() -> None: ...

    queue.enqueue("deadly", max_attempts=1, lease_seconds=0.1, idempotency_key="order:42")
    queue.record_start(queue.claim_one(worker="gone"))

    async def until_noticed() -> None:
        await auntil(lambda: seen)

    work(app, until_noticed)

    ((task, key, kind, text),) = seen
    assert (task, key, kind) == ("deadly", "order:42", "JobFailed")
    assert "lease" in text


@pytest.mark.parametrize("kind", ["async", "blocking"])
@pytest.mark.parametrize("how", [ValueError("boo"), SystemExit(3), asyncio.CancelledError()])
def test_an_observer_that_raises_changes_nothing(app: Faultline, log: io.StringIO, kind: str, how: BaseException) -> None:
    seen: list[str] = []

    async def araises(job: Attempt) -> None:
        raise how

    def raises(job: Attempt) -> None:
        raise how

    app.on_start(araises if kind == "async" else raises)
    app.on_success(araises if kind == "async" else raises)

    @app.on_success
    async def second(job: Attempt) -> None:
        seen.append(job.task)

    @app.task
    async def plain() -> int:
        return 1

    handle = plain.enqueue()
    assert results(app, [handle]) == [1]

    assert seen == ["plain"]
    hooks = logged(log, "hook_failed")
    assert [(line["task"], line["job_id"]) for line in hooks] == [("plain", str(handle.id))] * 2


@pytest.mark.parametrize("kind", ["async", "stubborn", "blocking"])
def test_an_observer_that_hangs_holds_up_nothing(
    app: Faultline, log: io.StringIO, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(observers, "CALL_SECONDS", 0.1)
    over, seen = threading.Event(), []

    async def ahangs(job: Attempt) -> None:
        while not over.is_set():
            try:
                await asyncio.sleep(60 if kind == "async" else 0.05)
            except asyncio.CancelledError:
                if kind == "async":
                    raise

    def hangs(job: Attempt) -> None:
        over.wait(60)

    app.on_success(hangs if kind == "blocking" else ahangs)

    @app.on_success
    async def second(job: Attempt) -> None:
        seen.append(job.id)

    @app.task
    async def plain(n: int) -> int:
        return n

    async def story() -> list[int]:
        found = [await (await plain.aenqueue(n)).aresult(60) for n in range(3)]
        await auntil(lambda: len(seen) == 3)
        over.set()
        return found

    assert work(app, story) == [0, 1, 2]
    texts = [line["error"] for line in logged(log, "hook_failed")]
    assert texts[0] == "timed out after 0.1 s"
    left_behind = "not called: an earlier call has not returned"
    assert texts[1:] == (["timed out after 0.1 s"] * 2 if kind == "async" else [left_behind] * 2)


def test_observers_that_are_too_slow_miss_some_and_that_is_logged(
    app: Faultline, log: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observers, "WAITING_MAX", 2)
    gate, seen = asyncio.Event(), []

    @app.on_start
    async def slow(job: Attempt) -> None:
        seen.append(job.id)
        await gate.wait()

    @app.task
    async def plain(n: int) -> int:
        return n

    async def story() -> None:
        handles = [await plain.aenqueue(n) for n in range(10)]
        await asyncio.gather(*(handle.aresult(60) for handle in handles))
        gate.set()

    work(app, story)

    assert len(seen) == 3
    assert sum(line["calls"] for line in logged(log, "hooks_dropped")) == 7


def test_on_enqueue_sees_each_job_and_cannot_refuse_it(app: Faultline, log: io.StringIO) -> None:
    seen: list[tuple[Any, ...]] = []

    @app.on_enqueue
    def enqueued(handle: Any, submission: Any) -> None:
        seen.append((handle.id, handle.created, submission.task, submission.queue))
        raise ValueError("no")

    @app.task(queue="mail")
    async def send(to: str) -> None: ...

    first = send.options(idempotency_key="k").enqueue("a")
    second = asyncio.run(_closing(app, send.options(idempotency_key="k").aenqueue("a")))

    assert seen == [(first.id, True, "send", "mail"), (second.id, False, "send", "mail")]
    assert [line["error"] for line in logged(log, "hook_failed")] == ["ValueError: no"] * 2


async def _closing(app: Faultline, call: Awaitable[Any]) -> Any:
    try:
        return await call
    finally:
        await app.async_database.close()


def test_a_failure_that_no_exception_caused_is_one_for_observers(app: Faultline) -> None:
    seen: list[BaseException] = []

    @app.on_failure
    async def failure(job: Attempt, error: BaseException) -> None:
        seen.append(error)

    @app.task(max_attempts=1)
    async def wrong() -> Any:
        return object()

    wrong.enqueue()
    drain(app)

    assert isinstance(seen[0], JobFailed)
    assert "cannot be stored" in str(seen[0])


def test_a_timeout_says_where_the_task_was(app: Faultline) -> None:
    async def asks_a_bank() -> None:
        await asyncio.sleep(60)

    @app.task(timeout=0.05, max_attempts=1)
    async def slow() -> None:
        await asks_a_bank()

    error = str(results(app, [slow.enqueue()])[0])

    assert "in slow\n" in error
    assert "in asks_a_bank\n" in error


@pytest.mark.parametrize("around", [False, True])
def test_a_timeout_says_where_the_thread_of_the_task_was(app: Faultline, around: bool) -> None:  # noqa: FBT001
    let_go = threading.Event()
    if around:

        @app.middleware
        async def passes(job: Attempt, call: Callable[[], Awaitable[Any]]) -> Any:
            return await call()

    def asks_a_bank() -> None:
        let_go.wait(60)

    @app.task(timeout=0.2, max_attempts=1)
    def slow() -> None:
        asks_a_bank()

    error = str(results(app, [slow.enqueue()])[0])
    let_go.set()

    assert "TimedOut: timed out after 0.2 s" in error
    assert "in slow\n" in error
    assert "in asks_a_bank\n" in error
