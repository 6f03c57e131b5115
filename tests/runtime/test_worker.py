"""A worker inside this process, against a real server: what tasks may do, and what becomes of their jobs."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from faultline import (
    BlockingJob,
    Cancel,
    ConfigError,
    Faultline,
    Job,
    JobCancelled,
    JobFailed,
    JobState,
    Retry,
    Snooze,
    StaleLease,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from faultline import JobHandle
    from tests.driver import Driver

PATIENCE = 30.0


def work(app: Faultline, story: Callable[[], Awaitable[Any]], queues: dict[str, int] | None = None, **words: Any) -> Any:
    """Run a worker for as long as the story takes."""

    async def main() -> Any:
        async with asyncio.timeout(PATIENCE), app.worker(queues or {"default": 20}, **words):
            try:
                return await story()
            finally:
                await app.async_database.close()

    return asyncio.run(main())


def results(app: Faultline, handles: list[JobHandle[Any]], **words: Any) -> list[Any]:
    """The result or the error of every job."""

    async def story() -> list[Any]:
        return await asyncio.gather(*(handle.aresult(PATIENCE) for handle in handles), return_exceptions=True)

    return list(work(app, story, **words))


def test_async_and_blocking_tasks_run_and_give_their_results(app: Faultline) -> None:
    @app.task
    async def add(a: int, b: int = 1) -> int:
        await asyncio.sleep(0)
        return a + b

    @app.task
    def where(job: BlockingJob) -> str:
        assert job.attempt == 1
        return threading.current_thread().name

    found = results(app, [add.enqueue(1), add.enqueue(2, b=3), where.enqueue()])

    assert found[:2] == [2, 5]
    assert found[2].startswith("faultline-task")


def test_a_job_knows_its_facts(app: Faultline) -> None:
    @app.task(max_attempts=3, timeout=60)
    async def facts(job: Job) -> list[Any]:
        assert job.deadline is not None
        left = (job.deadline - datetime.now(UTC)).total_seconds()
        return [
            str(job.id),
            job.task,
            job.attempt,
            job.max_attempts,
            job.fencing_token,
            job.idempotency_key,
            50 < left <= 60,
        ]

    handle = facts.options(idempotency_key="order:1").enqueue()

    assert results(app, [handle]) == [[str(handle.id), "facts", 1, 3, 1, "order:1", True]]


def test_a_thousand_jobs_are_done_once_each(app: Faultline, queue: Driver) -> None:
    ran: list[int] = []

    @app.task
    async def note(n: int) -> int:
        ran.append(n)
        return n

    handles = app.enqueue_many(note.bind(n) for n in range(1000))

    assert results(app, handles) == list(range(1000))
    assert sorted(ran) == list(range(1000))
    assert queue.value("select count(*) from faultline.ledger") == 1000
    assert queue.value("select count(*) from faultline.journal") == 0


# Failures


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


def test_a_backoff_that_raises_does_not_lose_the_job(app: Faultline) -> None:
    def broken(attempt: int) -> float:
        raise RuntimeError(attempt)

    @app.task(max_attempts=1, backoff=broken)
    async def flaky() -> None:
        raise ValueError("x")

    assert isinstance(results(app, [flaky.enqueue()])[0], JobFailed)


def test_the_default_wait_doubles_and_is_jittered(app: Faultline, queue: Driver) -> None:
    @app.task
    async def flaky() -> None:
        raise ValueError("x")

    handles = app.enqueue_many(flaky.bind() for _ in range(20))

    async def until_all_have_failed_once() -> None:
        while queue.value("select count(*) from faultline.journal") < 20:
            await asyncio.sleep(0)

    work(app, until_all_have_failed_once)

    waits = queue.value(
        "select array_agg(extract(epoch from j.next_run_at - n.at)::float8) from faultline.open_jobs j"
        " join faultline.journal n on n.job_id = j.id where n.event = 'attempt_failed'"
    )
    assert len(waits) == len(handles)
    assert all(1.4 < wait < 2.6 for wait in waits)
    assert len({round(wait, 3) for wait in waits}) > 10


def test_outcomes_are_values(app: Faultline, queue: Driver) -> None:
    @app.task(max_attempts=2)
    async def moody(job: Job, mood: str) -> Any:
        match mood:
            case "retry":
                return Retry(after=0, error="not yet") if job.attempt == 1 else "second time"
            case "snooze":
                return Snooze(0) if job.fencing_token < 5 else job.attempt
            case _:
                return Cancel("not needed any more")

    retried, snoozed, cancelled = (moody.enqueue(mood) for mood in ("retry", "snooze", "cancel"))
    found = results(app, [retried, snoozed, cancelled])

    assert found[:2] == ["second time", 1]
    first_try = queue.journal(retried.id)[0]
    assert first_try.detail["next_run_at"][:19] == first_try.at.isoformat()[:19]
    assert isinstance(found[2], JobCancelled)
    assert queue.journal(retried.id)[0].detail["error"] == "not yet"
    assert queue.journal(snoozed.id) == []


def test_a_task_that_nobody_registered_fails_and_says_so(app: Faultline, queue: Driver) -> None:
    job_id = queue.enqueue("unheard_of", max_attempts=1)

    (error,) = results(app, [app.handle(job_id)])

    assert "no task named unheard_of is registered in this worker" in str(error)


def test_arguments_that_no_longer_fit_fail_and_say_so(app: Faultline, queue: Driver) -> None:
    @app.task
    async def charge(order_id: int) -> None: ...

    job_id = queue.enqueue("charge", {"order": 1}, max_attempts=1)

    assert "the arguments do not fit charge(order_id: 'int')" in str(results(app, [app.handle(job_id)])[0])


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("even my text raises")


BAD_ENDINGS: dict[str, tuple[Callable[[], Any], str]] = {
    "a set": (lambda: {1, 2}, "is a set"),
    "not a number": (lambda: float("nan"), "nan"),
    "a NUL": (lambda: "a\x00b", "NUL"),
    "a generator": (lambda: (n for n in range(3)), "generator"),
    "too large": (lambda: "x" * 1_100_000, "more than 1048576"),
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

    assert "make it `async def`" in str(results(app, [forgot_to_await.enqueue()])[0])


# Time


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
    release, tried = threading.Event(), []

    @app.task(max_attempts=1, timeout=0.05)
    def stuck(job: BlockingJob) -> None:
        release.wait(PATIENCE)
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
    assert tried == ["not_running"]


# Leases


def test_a_busy_loop_keeps_its_leases(app: Faultline) -> None:
    @app.task(lease=0.6)
    async def busy(job: Job) -> int:
        time.sleep(2)  # noqa: ASYNC251 - the offence that is tested
        return job.fencing_token

    assert results(app, [busy.enqueue()]) == [1]


def test_a_cancelled_job_is_stopped_and_writes_nothing(app: Faultline, queue: Driver) -> None:
    started, stopped = asyncio.Event(), []

    @app.task
    async def long(job: Job) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            stopped.append(job.lease_lost)
            raise

    handle = long.enqueue()

    async def story() -> None:
        await started.wait()
        await app.acancel(handle.id)
        while not stopped:
            await asyncio.sleep(0)

    work(app, story)

    assert stopped == [True]
    assert queue.state(handle.id) is JobState.CANCELLED


def test_a_blocking_task_sees_that_its_lease_is_lost(app: Faultline) -> None:
    started, seen = threading.Event(), threading.Event()

    @app.task
    def long(job: BlockingJob) -> None:
        started.set()
        while not job.lease_lost:
            time.sleep(0)
        seen.set()

    handle = long.enqueue()

    async def story() -> bool:
        await asyncio.to_thread(started.wait, PATIENCE)
        await app.acancel(handle.id)
        return await asyncio.to_thread(seen.wait, PATIENCE)

    assert work(app, story) is True


def test_a_worker_that_lost_its_job_completes_nothing(app: Faultline, queue: Driver) -> None:
    """Taken over behind its back, as after a freeze: the ending that it sends is refused and on record."""
    running, go_on = asyncio.Event(), asyncio.Event()

    @app.task
    async def slow() -> str:
        running.set()
        await go_on.wait()
        return "stale"

    handle = slow.enqueue()

    async def story() -> None:
        await running.wait()
        lease_row = "update faultline.open_jobs set lease_expires_at = now() - interval '1 second'"
        queue.connection.execute(lease_row)
        queue.reap(notice_dead=False)
        taken = queue.claim_one(worker="another")
        go_on.set()
        while not queue.refusals(handle.id):
            await asyncio.sleep(0)
        queue.complete(taken, result="fresh")

    work(app, story)

    assert queue.job(handle.id).result == "fresh"
    assert {reason for _, reason in queue.refusals(handle.id)} == {"token_mismatch"}


# Steps, progress, transactions


@pytest.mark.parametrize("kind", ["async", "blocking"])
def test_a_step_runs_once_whichever_attempt(app: Faultline, kind: str) -> None:
    calls: list[int] = []

    def paid_call(n: int) -> dict[str, int]:
        calls.append(n)
        return {"price": n}

    @app.task(name="async", max_attempts=3, backoff=lambda _: 0)
    async def buy(job: Job) -> Any:
        quote = await job.step("quote", paid_call, 7)
        if job.attempt < 3:
            raise ValueError("fails after the paid call")
        return quote

    @app.task(name="blocking", max_attempts=3, backoff=lambda _: 0)
    def buy_blocking(job: BlockingJob) -> Any:
        quote = job.step("quote", paid_call, 7)
        if job.attempt < 3:
            raise ValueError("fails after the paid call")
        return quote

    assert results(app, [app.tasks[kind].enqueue()]) == [{"price": 7}]
    assert calls == [7]


@pytest.mark.parametrize("kind", ["async", "blocking"])
def test_effects_and_completion_commit_together(app: Faultline, queue: Driver, kind: str) -> None:
    queue.connection.execute("create table paid (order_id integer, attempt integer)")

    @app.task(name="async", max_attempts=3, backoff=lambda _: 0)
    async def pay(job: Job, order_id: int) -> None:
        async with job.transaction() as tx:
            await tx.execute("insert into paid values (%s, %s)", (order_id, job.attempt))
            await job.step("receipt", lambda: "R1")
            await job.progress("paying")
            if job.attempt == 1:
                raise ValueError("rolls back")
            tx.complete({"order": order_id})
        raise ValueError("code after the completion may run, and changes nothing")

    @app.task(name="blocking", max_attempts=3, backoff=lambda _: 0)
    def pay_blocking(job: BlockingJob, order_id: int) -> None:
        with job.transaction() as tx:
            tx.execute("insert into paid values (%s, %s)", (order_id, job.attempt))
            job.step("receipt", lambda: "R1")
            job.progress("paying")
            if job.attempt == 1:
                raise ValueError("rolls back")
            tx.complete({"order": order_id})
        raise ValueError("code after the completion may run, and changes nothing")

    handle = app.tasks[kind].enqueue(42)

    assert results(app, [handle]) == [{"order": 42}]
    assert queue.connection.execute("select * from paid").fetchall() == [(42, 2)]
    assert queue.job(handle.id).attempt == 2


@pytest.mark.parametrize("kind", ["async", "blocking"])
def test_a_transaction_whose_error_was_swallowed_does_not_pass_for_a_success(
    app: Faultline, queue: Driver, kind: str
) -> None:
    """PostgreSQL would roll back in silence, and the job would succeed without its effects."""
    queue.connection.execute("create table paid (n integer primary key)")

    @app.task(name="async", max_attempts=1)
    async def pay(job: Job) -> None:
        async with job.transaction() as tx:
            await tx.execute("insert into paid values (1)")
            with contextlib.suppress(psycopg.Error):
                await tx.execute("insert into paid values (1)")

    @app.task(name="blocking", max_attempts=1)
    def pay_blocking(job: BlockingJob) -> None:
        with job.transaction() as tx:
            tx.execute("insert into paid values (1)")
            with contextlib.suppress(psycopg.Error):
                tx.execute("insert into paid values (1)")

    (error,) = results(app, [app.tasks[kind].enqueue()])

    assert "nothing of it can be committed" in str(error)
    assert queue.value("select count(*) from paid") == 0


@pytest.mark.parametrize("kind", ["async", "blocking"])
def test_a_transaction_inside_a_transaction_is_refused_at_once(app: Faultline, kind: str) -> None:
    @app.task(name="async", max_attempts=1)
    async def nest(job: Job) -> None:
        async with job.transaction(), job.transaction():
            pass

    @app.task(name="blocking", max_attempts=1)
    def nest_blocking(job: BlockingJob) -> None:
        with job.transaction(), job.transaction():
            pass

    (error,) = results(app, [app.tasks[kind].enqueue()])

    assert "inside its transaction already" in str(error)


@pytest.mark.parametrize("kind", ["async", "blocking"])
def test_a_stale_transaction_raises_and_rolls_back(app: Faultline, queue: Driver, kind: str) -> None:
    queue.connection.execute("create table paid (n integer)")
    raised: list[str | None] = []

    def lose_it(job: Job | BlockingJob) -> None:
        queue.connection.execute("update faultline.open_jobs set lease_expires_at = now() - interval '1 second'")
        queue.reap(notice_dead=False)

    @app.task(name="async")
    async def pay(job: Job) -> None:
        lose_it(job)
        try:
            async with job.transaction() as tx:
                await tx.execute("insert into paid values (1)")
        except StaleLease as error:
            raised.append(error.reason)
            raise

    @app.task(name="blocking")
    def pay_blocking(job: BlockingJob) -> None:
        lose_it(job)
        try:
            with job.transaction() as tx:
                tx.execute("insert into paid values (1)")
        except StaleLease as error:
            raised.append(error.reason)
            raise

    handle = app.tasks[kind].enqueue()

    async def story() -> None:
        while not queue.refusals(handle.id):
            await asyncio.sleep(0)

    work(app, story)

    assert queue.refusals(handle.id)[0][0] == "fence"
    assert raised[0] in ("lease_lost", "token_mismatch")
    assert queue.value("select count(*) from paid") == 0


# Queues


def test_a_queue_never_runs_more_at_once_than_it_was_given(app: Faultline) -> None:
    now: dict[str, int] = {"narrow": 0, "wide": 0}
    most = dict(now)

    @app.task
    async def count(queue: str) -> None:
        now[queue] += 1
        most[queue] = max(most[queue], now[queue])
        await asyncio.sleep(0.001)
        now[queue] -= 1

    handles = app.enqueue_many(count.options(queue=q).bind(q) for q in ("narrow", "wide") for _ in range(100))
    results(app, handles, queues={"narrow": 3, "wide": 40})

    assert most["narrow"] == 3
    assert 3 < most["wide"] <= 40


def test_the_most_urgent_runs_first(app: Faultline) -> None:
    order: list[int] = []

    @app.task
    async def note(priority: int) -> None:
        order.append(priority)

    handles = app.enqueue_many(note.options(priority=p).bind(p) for p in (5, -5, 0, 5, -5))
    results(app, handles, queues={"default": 1})

    assert order == [-5, -5, 0, 5, 5]


@pytest.mark.parametrize("queues", [{"default": 0}])
def test_a_worker_without_anything_to_do_is_refused(app: Faultline, queues: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="at least one queue"):
        app.worker(queues)


# The end, and the database's end


def test_stopping_finishes_what_runs_and_gives_the_rest_back(app: Faultline, queue: Driver) -> None:
    running, go_on = asyncio.Event(), asyncio.Event()

    @app.task
    async def slow() -> str:
        running.set()
        await go_on.wait()
        return "finished"

    handles = [slow.enqueue() for _ in range(3)]

    async def main() -> None:
        worker = app.worker({"default": 1})
        stopping = asyncio.create_task(worker.run())
        await running.wait()
        worker.stop()
        go_on.set()
        await stopping
        await app.async_database.close()

    asyncio.run(main())

    jobs = [queue.job(handle.id) for handle in handles]
    assert [(job.state, job.attempt) for job in jobs] == [("succeeded", 1), ("queued", 0), ("queued", 0)]
    assert queue.value("select count(*) from faultline.workers") == 0


@pytest.mark.parametrize("kind", ["async", "blocking"])
def test_what_does_not_finish_within_the_grace_time_is_given_back_with_its_attempt(
    app: Faultline, queue: Driver, kind: str
) -> None:
    running, release = threading.Event(), threading.Event()

    @app.task(name="async")
    async def endless() -> None:
        running.set()
        await asyncio.Event().wait()

    @app.task(name="blocking")
    def endless_blocking() -> None:
        running.set()
        release.wait(PATIENCE)

    handle = app.tasks[kind].enqueue()

    async def story() -> None:
        await asyncio.to_thread(running.wait, PATIENCE)

    work(app, story, grace_seconds=0.05)
    release.set()

    assert (queue.state(handle.id), queue.job(handle.id).attempt) == (JobState.QUEUED, 0)


def test_a_worker_goes_on_after_all_its_connections_were_cut(app: Faultline, queue: Driver, dsn: str) -> None:
    cut_at = {100, 300}

    @app.task
    async def note(n: int) -> int:
        if n in cut_at:
            await asyncio.to_thread(_cut, dsn, queue.connection.info.backend_pid)
        return n

    handles = app.enqueue_many(note.bind(n) for n in range(500))

    async def story() -> None:
        while queue.value("select count(*) from faultline.ledger") < len(handles):
            await asyncio.sleep(0.01)

    work(app, story)

    assert queue.value(
        "select array_agg(result::text::integer order by result::text::integer) from faultline.ledger"
    ) == list(range(500))
    assert queue.broken_invariants() == []


def _cut(dsn: str, spared: int) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and pid not in (pg_backend_pid(), %s)",
            (spared,),
        )


def test_a_new_job_wakes_a_sleeping_worker(app: Faultline, queue: Driver) -> None:
    @app.task
    async def hello() -> str:
        return "hello"

    async def story() -> float:
        while queue.value("select coalesce(max(sleeping::text), '') from faultline.workers") != "{default}":
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.5)  # polls have become rare by now
        handle = await hello.aenqueue()
        await handle.aresult(PATIENCE)
        job = queue.job(handle.id)
        assert job.claimed_at is not None
        return (job.claimed_at - job.created_at).total_seconds()

    assert work(app, story) < 0.3
