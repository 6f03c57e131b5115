from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from faultline import (
    DatabaseUnavailable,
    Faultline,
    IllegalTransition,
    JobCancelled,
    JobFailed,
    JobNotFound,
    JobState,
    ResultTimeout,
)
from faultline.store import verbs
from faultline.store.database import Database

if TYPE_CHECKING:
    from collections.abc import Callable

    from faultline import Task
    from tests.driver import Driver


@pytest.fixture
def work(app: Faultline) -> Task[[int], int]:
    @app.task
    def work(n: int) -> int:
        return n

    return work


def test_a_result_is_given_once_the_job_has_succeeded(queue: Driver, work: Task[Any, Any]) -> None:
    handle = work.enqueue(1)
    with ThreadPoolExecutor() as waiters:
        answer = waiters.submit(handle.result, 20)
        queue.complete(queue.claim_one(), result={"sum": 1})

        assert answer.result() == {"sum": 1}
    assert handle.result() == {"sum": 1}


def test_an_async_result(queue: Driver, work: Task[Any, Any]) -> None:
    handle = work.enqueue(1)

    async def wait() -> Any:
        waiting = asyncio.ensure_future(handle.aresult(20))
        await asyncio.to_thread(lambda: queue.complete(queue.claim_one(), result=5))
        return await waiting

    assert asyncio.run(wait()) == 5


def test_a_failed_job_raises_its_error(queue: Driver, work: Task[Any, Any]) -> None:
    handle = work.enqueue(1)
    queue.fail(queue.claim_one(), then="fail", error="no route to host")

    with pytest.raises(JobFailed, match="no route to host"):
        handle.result(20)


def test_a_cancelled_job_raises(app: Faultline, work: Task[Any, Any]) -> None:
    handle = work.enqueue(1)
    app.cancel(handle.id, "mistake")

    with pytest.raises(JobCancelled, match="cancelled: mistake"):
        handle.result(20)


def test_waiting_ends_after_the_timeout_and_the_job_goes_on(work: Task[Any, Any]) -> None:
    handle = work.enqueue(1)

    with pytest.raises(
        ResultTimeout, match=r"has not ended within 0\.05 s: .* The job was not stopped: call result\(\) again later"
    ):
        handle.result(0.05)
    with pytest.raises(ResultTimeout):
        asyncio.run(handle.aresult(0.05))

    assert handle.job().state == "queued"


def test_waiting_that_ends_says_how_far_the_job_is(queue: Driver, work: Task[Any, Any]) -> None:
    handle = work.enqueue(1)

    def told(wait: Callable[[], object]) -> str:
        with pytest.raises(ResultTimeout) as caught:
            wait()
        return str(caught.value)

    def due_at() -> str:
        at = handle.job().next_run_at
        return "never" if at is None else at.isoformat()

    assert f"it is queued, due at {due_at()}." in told(lambda: handle.result(1))
    lease = queue.claim_one()
    shown = told(lambda: asyncio.run(handle.aresult(1)))
    assert f"it is running, attempt 1 of 5, on {lease.owner}. " in shown
    assert shown.endswith(f"To see why: faultline job {handle.id}")
    queue.fail(lease, error="RuntimeError: no route\n  at line 1", delay=60)
    assert f"it is queued, due at {due_at()}; attempt 1 of 5 ended with: RuntimeError: no route. The" in told(
        lambda: handle.result(1)
    )


def test_waiting_ends_in_time_while_the_database_does_not_answer(app: Faultline, work: Task[Any, Any]) -> None:
    handle = work.enqueue(1)
    asked, answer = threading.Event(), threading.Event()

    class Silent:
        def run(self, _: object) -> Any:
            asked.set()
            answer.wait(20)
            return [], {}

    app.poller._database = Silent()  # type: ignore[assignment]  # noqa: SLF001 - the seam's other end

    with pytest.raises(ResultTimeout, match="the database has not yet said in which state it is"):
        handle.result(0.05)
    assert asked.is_set()
    answer.set()


def test_an_unknown_job_is_not_waited_for(app: Faultline) -> None:
    with pytest.raises(JobNotFound, match="no job"):
        app.handle(uuid4()).result(20)


def test_a_database_that_is_gone_is_not_waited_for(app: Faultline, work: Task[Any, Any]) -> None:
    handle = work.enqueue(1)
    app.poller._database = Database("postgresql://127.0.0.1:1/nowhere")  # noqa: SLF001 - the seam's other end

    with pytest.raises(DatabaseUnavailable):
        handle.result(20)


def test_an_odd_result_does_not_keep_the_others_waiting(app: Faultline, queue: Driver, work: Task[Any, Any]) -> None:
    odd, plain = work.enqueue(1), work.enqueue(2)
    first, second = queue.claim()
    queue.run(verbs.complete([first, second], ["1e400", "2"]))

    assert odd.result(20) == str(10**400)
    assert plain.result(20) == 2


def test_an_error_of_any_kind_reaches_those_who_wait(app: Faultline, work: Task[Any, Any]) -> None:
    handle = work.enqueue(1)

    class Broken:
        def run(self, _: object) -> None:
            raise RuntimeError("unforeseen")

    app.poller._database = Broken()  # type: ignore[assignment]  # noqa: SLF001

    for _ in range(2):
        with pytest.raises(RuntimeError, match="unforeseen"):
            handle.result(20)


def test_a_hundred_waiters_cost_one_query_a_round(app: Faultline, queue: Driver, work: Task[Any, Any]) -> None:
    handles = app.enqueue_many(work.bind(n) for n in range(100))
    app.poller._seconds_min = app.poller._seconds_max = 60.0  # noqa: SLF001 - no round but ours
    with ThreadPoolExecutor(100) as waiters:
        answers = [waiters.submit(handle.result, 20) for handle in handles]
        while len(app.poller._awaited) < 100:  # noqa: SLF001
            pass
        queue.complete(*queue.claim(), result="done")

        assert app.poller.tick() is True

        assert [answer.result() for answer in answers] == ["done"] * 100


def test_the_pollers_thread_ends_when_nobody_waits(app: Faultline, queue: Driver, work: Task[Any, Any]) -> None:
    handle = work.enqueue(1)
    queue.complete(queue.claim_one())
    handle.result(20)

    while app.poller._running:  # noqa: SLF001
        pass
    assert handle.result(20) is None


def test_a_handle_cancels_and_retries_its_job(app: Faultline, work: Task[[int], int]) -> None:
    handle = work.enqueue(1)

    assert handle.cancel("a mistake", by="ada") is JobState.CANCELLED
    assert handle.job().last_error == "cancelled: a mistake"
    assert handle.retry(by="ada") is JobState.QUEUED
    with pytest.raises(IllegalTransition, match="only a failed or cancelled job can be retried"):
        handle.retry()


def test_a_handle_cancels_and_retries_its_job_in_async_programs(app: Faultline, work: Task[[int], int]) -> None:
    async def program() -> list[JobState]:
        handle = await work.aenqueue(1)
        states = [await handle.acancel(), await handle.aretry(reason="after all")]
        await app.async_database.close()
        return states

    assert asyncio.run(program()) == [JobState.CANCELLED, JobState.QUEUED]


def test_the_handle_of_a_graph_cancels_and_retries_all_of_it(app: Faultline, work: Task[[int], int]) -> None:
    flow = app.flow()
    flow.add(work, 1)
    handle = flow.enqueue()

    assert handle.cancel() is JobState.CANCELLED
    assert handle.retry() is JobState.QUEUED
