"""What tasks may do: fail, hang, return or raise anything. Their jobs get an ending and the worker lives on."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from faultline import BlockingJob, Faultline, Job, JobFailed, StaleLease
from tests.waiting import auntil, until
from tests.worker.working import PATIENCE, logged, results, work

if TYPE_CHECKING:
    import io
    from collections.abc import Callable

    from faultline import JobHandle
    from tests.driver import Driver


def test_a_failing_job_is_tried_again_and_ends_visibly(app: Faultline, queue: Driver) -> None:
    attempts: list[int] = []

    @app.task(max_attempts=3, backoff=lambda _: 0)
    async def flaky(job: Job) -> None:
        attempts.append(job.attempt)
        raise ValueError("no route to host")

    handle = flaky.enqueue()
    (error,) = results(app, [handle])

    assert attempts == [1, 2, 3]
    assert isinstance(error, JobFailed)
    assert "ValueError: no route to host" in str(error)
    assert [entry.event for entry in queue.journal(handle.id)] == ["attempt_failed"] * 3


def test_an_error_shows_the_last_places_it_came_through(app: Faultline, queue: Driver) -> None:
    def descend(depth: int) -> None:
        if depth == 0:
            raise ValueError("at the bottom")
        go_on(depth - 1)

    def go_on(depth: int) -> None:
        descend(depth)

    @app.task(max_attempts=1)
    async def dig() -> None:
        descend(100)

    handle = dig.enqueue()
    results(app, [handle])

    first, *places = str(queue.job(handle.id).last_error).splitlines()
    assert first == "ValueError: at the bottom"
    assert "test_executor.py" in places[0]
    assert places[-1].strip() == 'raise ValueError("at the bottom")'
    assert len(places) <= 10  # two lines for each of five


def test_an_error_names_what_it_was_raised_from_and_where(app: Faultline, queue: Driver) -> None:
    def ask_the_bank() -> None:
        raise ConnectionError("the bank is away")

    @app.task(max_attempts=1)
    async def pay() -> None:
        try:
            ask_the_bank()
        except ConnectionError as error:
            raise ValueError("not paid") from error

    handle = pay.enqueue()
    results(app, [handle])

    first, cause, place, *_ = str(queue.job(handle.id).last_error).splitlines()
    assert (first, cause) == ("ValueError: not paid", "caused by ConnectionError: the bank is away")
    assert place.endswith("in ask_the_bank")


def test_a_timeout_names_no_cause_of_the_engine(app: Faultline, queue: Driver) -> None:
    @app.task(max_attempts=1, timeout=0.05)
    async def stall() -> None:
        await asyncio.Event().wait()

    handle = stall.enqueue()
    results(app, [handle])

    assert "caused by" not in str(queue.job(handle.id).last_error)


@pytest.mark.parametrize("error", [RuntimeError, SystemExit])
def test_a_backoff_that_raises_does_not_lose_the_job(app: Faultline, error: type[BaseException]) -> None:
    def broken(attempt: int) -> float:
        raise error(attempt)

    @app.task(max_attempts=1, backoff=broken)
    async def flaky() -> None:
        raise ValueError("first")

    assert "ValueError: first" in str(results(app, [flaky.enqueue()])[0])


def test_the_default_wait_doubles_and_is_jittered(app: Faultline, queue: Driver) -> None:
    @app.task
    async def flaky() -> None:
        raise ValueError("x")

    handles = app.enqueue_many(flaky.bind() for _ in range(20))

    async def until_all_have_failed_once() -> None:
        await auntil(lambda: queue.value("select count(*) from faultline.journal") >= 20)

    work(app, until_all_have_failed_once)

    waits = queue.value(
        "select array_agg(extract(epoch from j.next_run_at - n.at)::float8) from faultline.open_jobs j"
        " join faultline.journal n on n.job_id = j.id where n.event = 'attempt_failed'"
    )
    assert len(waits) == len(handles)
    assert all(1.4 < wait < 2.6 for wait in waits)
    assert len({round(wait, 3) for wait in waits}) > 10


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("even my text raises")


BAD_ENDINGS: dict[str, tuple[Callable[[], Any], str]] = {
    "a set": (lambda: {1, 2}, "is a set"),
    "not a number": (lambda: float("nan"), "nan"),
    "a NUL": (lambda: "a\x00b", "NUL"),
    "a generator": (lambda: (n for n in range(3)), "generator"),
    "too large": (lambda: "x" * 1_100_000, "more than the limit of 1048576"),
    "exit": (lambda: sys.exit(3), "SystemExit: 3"),
    "interrupt": (lambda: _raise(KeyboardInterrupt()), "KeyboardInterrupt"),
    "base exception": (lambda: _raise(BaseException("base")), "base"),
    "cancelled from inside": (lambda: _raise(asyncio.CancelledError()), "cancelled|CancelledError"),
    "stop iteration": (lambda: _raise(StopIteration(3)), "StopIteration"),
    "ten megabytes": (lambda: _raise(ValueError("x" * 10_000_000)), "xxxx"),
    "half a character": (lambda: _raise(ValueError("\ud800\x00")), "ValueError"),
    "unspeakable": (lambda: _raise(Unspeakable()), "Unspeakable"),
}


def _raise(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize("kind", ["async", "blocking"])
def test_whatever_a_task_does_the_worker_lives_on_and_the_others_complete(app: Faultline, kind: str) -> None:
    def misbehave(how: str) -> Any:
        return BAD_ENDINGS[how][0]()

    async def amisbehave(how: str) -> Any:
        return misbehave(how)

    bad = app.task(name="bad", max_attempts=1)(amisbehave if kind == "async" else misbehave)

    @app.task
    async def good(n: int) -> int:
        return n

    handles = app.enqueue_many([*(bad.bind(how) for how in BAD_ENDINGS), *(good.bind(n) for n in range(87))])
    found = results(app, handles)

    for error, (_, text) in zip(found, BAD_ENDINGS.values(), strict=False):
        assert isinstance(error, JobFailed), (error, text)
        assert any(part in str(error) for part in text.split("|")), (error, text)
    assert found[len(BAD_ENDINGS) :] == list(range(87))


def test_a_task_that_returns_a_coroutine_is_told_to_be_async(app: Faultline) -> None:
    async def later() -> int:
        return 1

    @app.task(max_attempts=1)
    def forgot_to_await() -> Any:
        return later()

    assert "write `return await later(...)` in an `async def`" in str(results(app, [forgot_to_await.enqueue()])[0])


def test_an_async_task_that_takes_too_long_is_cancelled(app: Faultline) -> None:
    cleaned_up: list[bool] = []

    @app.task(max_attempts=1, timeout=0.05)
    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned_up.append(True)

    assert "timed out after 0.05 s" in str(results(app, [slow.enqueue()])[0])
    assert cleaned_up == [True]


def test_a_timeout_of_the_tasks_own_is_its_own_error(app: Faultline) -> None:
    @app.task(max_attempts=1, timeout=20)
    async def impatient() -> None:
        async with asyncio.timeout(0):
            await asyncio.Event().wait()

    assert "TimeoutError" in str(results(app, [impatient.enqueue()])[0])


def test_a_blocking_task_that_ignores_its_timeout_is_abandoned_and_can_write_nothing_more(app: Faultline) -> None:
    release, tried, lost = threading.Event(), [], []

    @app.task(max_attempts=1, timeout=0.05)
    def stuck(job: BlockingJob) -> None:
        release.wait(PATIENCE)
        lost.append(job.lease_lost)
        try:
            job.progress("still here")
        except StaleLease as error:
            tried.append(error.reason)

    @app.task
    def next_one() -> str:
        return "ran"

    found = results(app, [stuck.enqueue(), next_one.enqueue()], queues={"default": 1})
    release.set()
    while not tried:
        time.sleep(0)

    assert "its thread was abandoned" in str(found[0])
    assert found[1] == "ran"
    assert lost == [True]
    assert tried == ["timed_out"]


@pytest.mark.parametrize("kind", ["async", "blocking"])
def test_a_transaction_that_outlives_its_timeout_is_rolled_back(app: Faultline, queue: Driver, kind: str) -> None:
    """Its thread cannot be stopped and its coroutine minds no cancellation: neither may commit, nor keep the job's row."""
    queue.connection.execute("create table paid (n integer)")
    inserted, ended, tried = threading.Event(), threading.Event(), []

    async def stubborn(job: Job) -> None:
        try:
            async with job.transaction() as tx:
                await tx.execute("insert into paid values (1)")
                inserted.set()
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.Event().wait()
                tx.complete("too late")
        except Exception as error:
            tried.append((job.lease_lost, error))
            raise

    def stubborn_blocking(job: BlockingJob) -> None:
        try:
            with job.transaction() as tx:
                tx.execute("insert into paid values (1)")
                inserted.set()
                ended.wait(PATIENCE)
                tx.complete("too late")
        except Exception as error:
            tried.append((job.lease_lost, error))
            raise

    def outlive(seconds: float) -> tuple[float, JobHandle[Any], object]:
        tried.clear()
        task: Any = stubborn if kind == "async" else stubborn_blocking
        handle = app.task(name=f"{kind} {seconds:g}", max_attempts=1, timeout=seconds)(task).enqueue()
        return seconds, handle, results(app, [handle])[0]

    # A busy machine may take longer than the timeout to begin the transaction.
    seconds, handle, error = next(run for run in map(outlive, (0.2, 2.0, 20.0)) if inserted.is_set())
    ended.set()
    until(lambda: tried)

    assert f"timed out after {seconds:g} s" in str(error)
    assert tried[0][0] is True
    assert queue.value("select count(*) from paid") == 0
    assert queue.job(handle.id).result is None


@pytest.mark.parametrize("kind", ["async", "blocking"])
def test_a_branch_that_its_task_left_behind_writes_nothing_more(app: Faultline, queue: Driver, kind: str) -> None:
    """Nor does the transaction that it holds open keep the job from ending."""
    queue.connection.execute("create table paid (n integer)")
    left: list[Any] = []
    refused: list[str] = []

    @app.task(name="async", max_attempts=1)
    async def leave(job: Job) -> str:
        opened, never = asyncio.Event(), asyncio.Event()

        async def branch() -> None:
            async with job.transaction() as tx:
                await tx.execute("insert into paid values (1)")
                opened.set()
                await never.wait()

        left.append(asyncio.create_task(branch()))
        await opened.wait()
        return "done"

    @app.task(name="blocking", max_attempts=1)
    def leave_blocking(job: BlockingJob) -> str:
        opened = threading.Event()

        def branch() -> None:
            try:
                with job.transaction() as tx:
                    tx.execute("insert into paid values (1)")
                    opened.set()
                    while not job.lease_lost:
                        time.sleep(0)
            except StaleLease as error:
                refused.append(str(error.reason))

        left.append(threading.Thread(target=branch))
        left[0].start()
        opened.wait(PATIENCE)
        return "done"

    assert results(app, [app.tasks[kind].enqueue()]) == ["done"]
    if kind == "blocking":
        left[0].join(PATIENCE)
        assert refused == ["attempt_ended"]
    assert queue.value("select count(*) from paid") == 0


def test_a_failure_is_logged_with_all_that_is_needed_to_find_it(app: Faultline, log: io.StringIO) -> None:
    @app.task(queue="mail", max_attempts=2, backoff=lambda _: 0)
    async def doomed() -> None:
        raise ValueError("no route to host")

    handle = doomed.enqueue()
    results(app, [handle], queues={"mail": 1})

    (first,), (last,) = logged(log, "attempt_failed"), logged(log, "job_failed")
    assert (first["level"], first["attempt"]) == ("warning", 1)
    assert (last["level"], last["attempt"]) == ("error", 2)
    assert (last["task"], last["queue"], last["job_id"]) == ("doomed", "mail", str(handle.id))
    assert last["error"].startswith("ValueError: no route to host\n")
    assert 'raise ValueError("no route to host")' in last["error"]


@pytest.mark.parametrize("how", ["timeout", "timeout_with_job", "cancel"])
def test_an_async_task_that_swallows_being_cancelled_is_left_behind(
    app: Faultline, queue: Driver, how: str, monkeypatch: pytest.MonkeyPatch, log: io.StringIO
) -> None:
    monkeypatch.setattr("faultline.worker.lease.held_lease.LEAVE_SECONDS", 0.2)
    monkeypatch.setattr("faultline.worker.run.executor.LEAVE_SECONDS", 0.2)
    release, started, ended, tried = asyncio.Event(), asyncio.Event(), asyncio.Event(), []

    async def swallow() -> None:
        started.set()
        while not release.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await release.wait()

    @app.task(name="timeout", max_attempts=1, timeout=0.1)
    async def within() -> None:
        await swallow()
        ended.set()

    @app.task(name="timeout_with_job", max_attempts=1, timeout=0.1)
    async def within_with_job(job: Job) -> None:
        await swallow()
        try:
            await job.progress("still here")
        except StaleLease as error:
            tried.append(error.reason)
        ended.set()

    @app.task(name="cancel", max_attempts=1)
    async def without() -> None:
        await swallow()
        ended.set()

    @app.task
    async def next_one() -> str:
        return "ran"

    async def story() -> Any:
        handle = app.tasks[how].enqueue()
        await started.wait()
        following = next_one.enqueue()
        try:
            if how == "cancel":
                await app.acancel(handle.id)
            ran = await following.aresult(PATIENCE)
            await asyncio.gather(handle.aresult(PATIENCE), return_exceptions=True)
            return ran, queue.state(handle.id).value, queue.job(handle.id).last_error
        finally:
            release.set()
            await ended.wait()

    ran, state, error = work(app, story, {"default": 1})

    assert ran == "ran"
    assert state == ("cancelled" if how == "cancel" else "failed")
    assert how == "cancel" or "ignored its cancellation" in error
    assert tried == (["timed_out"] if how == "timeout_with_job" else [])
    assert logged(log, "attempt_left_behind")


class Unshowable(Exception):
    def __str__(self) -> str:
        raise SystemExit(4)


class Unlookable(Exception):
    @property
    def __class__(self) -> Any:
        raise SystemExit(4)

    @__class__.setter
    def __class__(self, value: Any) -> None: ...


@pytest.mark.parametrize("error", [Unshowable, Unlookable])
def test_an_exception_that_raises_when_it_is_looked_at_is_a_failure(app: Faultline, error: type[Exception]) -> None:
    @app.task(max_attempts=1)
    async def hostile() -> None:
        raise error

    @app.task
    async def next_one() -> str:
        return "ran"

    found = results(app, [hostile.enqueue(), next_one.enqueue()], queues={"default": 1})

    assert isinstance(found[0], JobFailed)
    assert found[1] == "ran"


def test_what_a_job_leaves_behind_cancels_no_other_job(app: Faultline, queue: Driver) -> None:
    """Jobs run one after the other in one asyncio task, and a timer of the first may cancel what it took for its own."""

    @app.task
    async def leaves(seconds: float) -> None:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_later(seconds, task.cancel)

    @app.task
    async def innocent() -> str:
        await asyncio.sleep(0.5)
        return "done"

    # So many that they are claimed ahead, and run one after the other.
    handles = app.enqueue_many([job for _ in range(60) for job in (*[leaves.bind(0.3)] * 20, innocent.bind())])

    assert results(app, handles, queues={"default": 60}) == ([None] * 20 + ["done"]) * 60
    assert queue.value("select max(attempt) from faultline.ledger") == 1


def test_a_cancellation_between_two_jobs_strands_neither(app: Faultline) -> None:
    @app.task
    async def leaves() -> None:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_soon(task.cancel)

    handles = app.enqueue_many([leaves.bind() for _ in range(3000)])

    assert results(app, handles) == [None] * 3000
