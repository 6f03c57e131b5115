"""Several branches of one job: each has its own transaction, steps run once, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from faultline import BlockingJob, Faultline, Job, JobFailed
from faultline.attempt import attempt
from tests.app.kinds import KINDS, task_of
from tests.waiting import auntil
from tests.worker.working import PATIENCE, results, work

if TYPE_CHECKING:
    from tests.driver import Driver


def test_a_step_beside_a_transaction_is_not_rolled_back_with_it(app: Faultline, queue: Driver) -> None:
    """The step returned, so it is remembered, whatever becomes of another branch's transaction."""
    paid: list[int] = []

    @app.task(max_attempts=2, backoff=lambda _: 0)
    async def order(job: Job) -> Any:
        opened, stepped = asyncio.Event(), asyncio.Event()

        async def write() -> None:
            async with job.transaction():
                opened.set()
                # The other branch has paid by now, and waits until this transaction is over.
                await auntil(lambda: paid)
                raise ValueError("rolls back")

        async def pay() -> None:
            await opened.wait()
            await job.step("pay", lambda: paid.append(job.attempt))
            stepped.set()

        if job.attempt == 1:
            await asyncio.gather(write(), pay(), return_exceptions=True)
            assert stepped.is_set()
            raise ValueError("fails after the step has returned")
        await job.step("pay", lambda: paid.append(job.attempt))
        return paid

    assert results(app, [order.enqueue()]) == [[1]]


def test_a_step_in_a_thread_beside_a_transaction_is_not_rolled_back_with_it(app: Faultline) -> None:
    paid: list[int] = []

    @app.task(max_attempts=2, backoff=lambda _: 0)
    def order(job: BlockingJob) -> Any:
        opened = threading.Event()

        def write() -> None:
            with job.transaction():
                opened.set()
                while not paid:
                    time.sleep(0)
                raise ValueError("rolls back")

        def pay() -> None:
            opened.wait(PATIENCE)
            job.step("pay", lambda: paid.append(job.attempt))

        if job.attempt == 1:
            with ThreadPoolExecutor(2) as threads:
                written, stepped = threads.submit(write), threads.submit(pay)
                assert isinstance(written.exception(), ValueError)
                stepped.result()
            raise ValueError("fails after the step has returned")
        job.step("pay", lambda: paid.append(job.attempt))
        return paid

    assert results(app, [order.enqueue()]) == [[1]]


def test_transactions_of_two_branches_come_one_after_the_other(app: Faultline, queue: Driver) -> None:
    queue.connection.execute("create table written (n integer)")

    @app.task(max_attempts=1)
    async def both(job: Job) -> None:
        async def write(n: int) -> None:
            async with job.transaction() as tx:
                await asyncio.sleep(0)
                await tx.execute("insert into written values (%s)", (n,))

        await asyncio.gather(*(write(n) for n in range(4)))

    assert results(app, [both.enqueue()]) == [None]
    assert queue.value("select array_agg(n order by n) from written") == [0, 1, 2, 3]


@KINDS
def test_the_same_step_twice_at_once_runs_once(app: Faultline, kind: str) -> None:
    paid: list[int] = []

    @app.task(name="async", max_attempts=1)
    async def order(job: Job) -> Any:
        async def pay() -> int:
            paid.append(1)
            await asyncio.sleep(0.05)
            return len(paid)

        return await asyncio.gather(*(job.step("pay", pay) for _ in range(5)))

    @app.task(name="blocking", max_attempts=1)
    def order_blocking(job: BlockingJob) -> Any:
        def pay() -> int:
            paid.append(1)
            time.sleep(0.05)
            return len(paid)

        with ThreadPoolExecutor(5) as threads:
            return [call.result() for call in [threads.submit(job.step, "pay", pay) for _ in range(5)]]

    assert results(app, [app.tasks[kind].enqueue()]) == [[1] * 5]
    assert paid == [1]


def test_a_step_that_fails_is_run_by_the_branch_that_waited_for_it(app: Faultline) -> None:
    calls: list[int] = []

    @app.task(max_attempts=1)
    async def order(job: Job) -> Any:
        async def pay() -> int:
            calls.append(1)
            await asyncio.sleep(0)
            if len(calls) == 1:
                raise ValueError("only the first time")
            return len(calls)

        first, second = await asyncio.gather(job.step("pay", pay), job.step("pay", pay), return_exceptions=True)
        return [type(first).__name__, second]

    assert results(app, [order.enqueue()]) == [["ValueError", 2]]


@pytest.mark.parametrize("commits", [True, False])
def test_a_step_inside_a_transaction_is_done_for_others_when_it_is_committed(app: Faultline, commits: bool) -> None:  # noqa: FBT001
    """Its effects may be in that transaction: rolled back, the step was not done, and the other branch does it."""
    runs: list[str] = []

    @app.task(max_attempts=1)
    async def order(job: Job) -> Any:
        inside, decided = asyncio.Event(), asyncio.Event()

        async def part(who: str) -> str:
            runs.append(who)
            return who

        async def first() -> None:
            async with job.transaction():
                await job.step("part", part, "first")
                inside.set()
                await decided.wait()
                if not commits:
                    raise ValueError("rolls back")

        async def second() -> Any:
            await inside.wait()
            asyncio.get_running_loop().call_later(0.05, decided.set)
            return await job.step("part", part, "second")

        return (await asyncio.gather(first(), second(), return_exceptions=True))[1]

    expected = "first" if commits else "second"
    assert results(app, [order.enqueue()]) == [expected]
    assert runs == (["first"] if commits else ["first", "second"])


def test_a_branch_in_its_transaction_takes_over_the_step_that_another_one_runs(app: Faultline) -> None:
    """The other one cannot write before this transaction ends: to wait for it here would be a deadlock."""
    runs: list[str] = []

    @app.task(max_attempts=1)
    async def order(job: Job) -> Any:
        running, opened = asyncio.Event(), asyncio.Event()

        async def part(who: str) -> str:
            runs.append(who)
            running.set()
            await opened.wait()
            return who

        async def first() -> Any:
            return await job.step("part", part, "first")

        async def second() -> Any:
            await running.wait()
            async with job.transaction():
                opened.set()
                return await job.step("part", part, "second")

        return await asyncio.gather(first(), second())

    assert results(app, [order.enqueue()]) == [["first", "first"]]
    assert runs == ["first"]


def test_a_branch_that_was_started_inside_a_transaction_is_refused_before_its_step_runs(app: Faultline) -> None:
    """The transaction waits for the branch, the branch for the transaction: a deadlock, found at once."""
    runs: list[int] = []

    @app.task(max_attempts=1)
    async def order(job: Job) -> None:
        async with job.transaction():
            await asyncio.gather(job.step("a", lambda: runs.append(1)), job.step("b", lambda: runs.append(2)))

    (error,) = results(app, [order.enqueue()])

    assert "started inside the job's transaction" in str(error)
    assert runs == []


def test_branches_that_wait_for_each_other_end_with_an_error(app: Faultline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt, "TURN_SECONDS", 0.2)

    @app.task(max_attempts=1)
    async def order(job: Job) -> None:
        opened, done = asyncio.Event(), asyncio.Event()

        async def write() -> None:
            async with job.transaction():
                opened.set()
                await done.wait()

        async def progress() -> None:
            await opened.wait()
            await job.progress("waits for the transaction, which waits for it")
            done.set()

        await asyncio.gather(write(), progress())

    (error,) = results(app, [order.enqueue()])

    assert "waited 0.2 s for another branch's transaction" in str(error)


@KINDS
def test_a_step_inside_itself_is_refused_at_once(app: Faultline, kind: str) -> None:
    @task_of(app, kind, max_attempts=1)
    async def order(job: Job) -> None:
        await job.step("a", lambda: job.step("a", lambda: 1))

    (error,) = results(app, [order.enqueue()])

    assert "step a is called inside itself" in str(error)


@KINDS
def test_a_step_whose_result_cannot_be_stored_fails_its_job_once(app: Faultline, queue: Driver, kind: str) -> None:
    """What it did is done; every further attempt would do it again."""
    runs: list[int] = []

    def pay() -> Any:  # a set is stored if its annotation says so
        runs.append(1)
        return {1, 2}

    @task_of(app, kind, max_attempts=3, backoff=lambda _: 0)
    async def order(job: Job) -> None:
        await job.step("pay", pay)

    (error,) = results(app, [order.enqueue()])

    assert "result of step pay" in str(error)
    assert runs == [1]


@pytest.mark.parametrize("name", ["", "x" * 201, "a\x00b", "\ud800", 7, None], ids=repr)
@KINDS
def test_a_bad_step_name_is_refused_before_the_step_runs(app: Faultline, kind: str, name: Any) -> None:
    runs: list[int] = []

    @task_of(app, kind, max_attempts=1)
    async def order(job: Job) -> None:
        await job.step(name, lambda: runs.append(1))

    (error,) = results(app, [order.enqueue()])

    assert isinstance(error, JobFailed)
    assert "step name" in str(error)
    assert runs == []


class Orders:
    """Jobs with a transaction that waits for a step of another branch, which waits until it is told to go."""

    def __init__(self, app: Faultline) -> None:
        self.begun, self.inside = threading.Semaphore(0), threading.Semaphore(0)
        self.go = threading.Event()
        app.task(name="async", max_attempts=1)(self.order)
        app.task(name="blocking", max_attempts=1)(self.order_in_threads)

    async def order(self, job: Job) -> None:
        stepped = asyncio.Event()

        async def write() -> None:
            self.begun.release()
            async with job.transaction():
                self.inside.release()
                await stepped.wait()

        async def pay() -> None:
            await auntil(self.go.is_set)
            await job.step("pay", stepped.set)

        await asyncio.gather(write(), pay())

    def order_in_threads(self, job: BlockingJob) -> None:
        stepped = threading.Event()

        def write() -> None:
            self.begun.release()
            with job.transaction():
                self.inside.release()
                assert stepped.wait(PATIENCE)

        def pay() -> None:
            assert self.go.wait(PATIENCE)
            job.step("pay", stepped.set)

        with ThreadPoolExecutor(2) as threads:
            for branch in [threads.submit(write), threads.submit(pay)]:
                branch.result()


@KINDS
def test_jobs_whose_transactions_wait_for_their_branches_do_not_wait_for_each_others_connections(
    app: Faultline, kind: str
) -> None:
    """Each has a connection, or has asked for one, when its other branch needs one for a moment."""
    orders = Orders(app)

    async def story() -> Any:
        handles = [app.tasks[kind].enqueue() for _ in range(4)]
        for came in (*[orders.begun] * 4, *[orders.inside] * 2):
            assert await asyncio.to_thread(came.acquire, timeout=PATIENCE)
        orders.go.set()
        return await asyncio.gather(*(handle.aresult(PATIENCE) for handle in handles))

    assert work(app, story, {"default": 4}, job_connections_max=2) == [None] * 4
