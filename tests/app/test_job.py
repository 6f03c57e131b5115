"""The job as its task sees it: its lease, steps, transactions, and what a lost lease does to it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from faultline import BlockingJob, Faultline, Job, JobState, StaleLease
from tests.app.kinds import KINDS, task_of
from tests.waiting import auntil
from tests.worker.working import PATIENCE, results, work

if TYPE_CHECKING:
    from tests.driver import Driver


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


def test_a_busy_loop_keeps_its_leases(app: Faultline) -> None:
    @app.task(lease=1)
    async def busy(job: Job) -> int:
        time.sleep(3)  # noqa: ASYNC251 - the offence that is tested
        return job.fencing_token

    assert results(app, [busy.enqueue()]) == [1]


def test_a_notification_that_lies_stops_no_job(app: Faultline, queue: Driver) -> None:
    """Any login can send one."""
    started, go_on = asyncio.Event(), asyncio.Event()

    @app.task
    async def long(job: Job) -> bool:
        started.set()
        await go_on.wait()
        return job.lease_lost

    handle = long.enqueue()

    async def story() -> bool:
        await started.wait()
        for _ in range(100):
            queue.connection.execute("select pg_notify('faultline', %s)", (f'{{"cancelled": "{handle.id}"}}',))
        await asyncio.sleep(1.5)  # a lie has been looked into by then, and another look has followed
        go_on.set()
        return await handle.aresult()

    assert work(app, story) is False
    assert queue.journal(handle.id) == []


@pytest.mark.long
def test_a_transaction_that_outlasts_its_lease_costs_no_lease(app: Faultline) -> None:
    """While it is open nobody can renew the lease, and in the moment after its end anybody might take the job."""

    @app.task(max_attempts=1, lease=3)
    async def commits(job: Job, seconds: float) -> int:
        async with job.transaction():
            await asyncio.sleep(seconds)
        await asyncio.sleep(3.5)
        return job.fencing_token

    @app.task(max_attempts=1, lease=3)
    async def rolls_back(job: Job, seconds: float) -> int:
        with contextlib.suppress(ZeroDivisionError):
            async with job.transaction():
                await asyncio.sleep(seconds)
                raise ZeroDivisionError
        await asyncio.sleep(3.5)
        return job.fencing_token

    @app.task(max_attempts=1, lease=3)
    def blocks(job: BlockingJob, seconds: float) -> int:
        with job.transaction():
            time.sleep(seconds)
        time.sleep(3.5)
        return job.fencing_token

    handles = [task.enqueue(4.0 + n / 4) for n in range(4) for task in (commits, rolls_back, blocks)]

    assert results(app, handles) == [1] * len(handles)


def test_a_job_that_completed_itself_may_go_on_past_a_renewal(app: Faultline, queue: Driver) -> None:
    ended: list[bool] = []

    @app.task(lease=1)
    async def lingers(job: Job) -> None:
        async with job.transaction() as tx:
            tx.complete()
        await asyncio.sleep(1.2)
        ended.append(job.lease_lost)

    handle = lingers.enqueue()

    async def story() -> None:
        await auntil(lambda: ended)

    work(app, story)

    assert ended == [False]
    assert queue.journal(handle.id) == []


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
        await auntil(lambda: stopped)

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
        lease_row = "update faultline.open_jobs set lease_expires_at = now() - interval '1 minute'"
        queue.connection.execute(lease_row)
        queue.reap(notice_dead=False)
        taken = queue.claim_one(worker="another")
        go_on.set()
        await auntil(lambda: queue.refusals(handle.id))
        queue.complete(taken, result="fresh")

    work(app, story)

    assert queue.job(handle.id).result == "fresh"
    assert {reason for _, reason in queue.refusals(handle.id)} == {"token_mismatch"}


@KINDS
def test_a_step_runs_once_whichever_attempt(app: Faultline, kind: str) -> None:
    calls: list[int] = []

    def paid_call(n: int) -> dict[str, int]:
        calls.append(n)
        return {"price": n}

    @task_of(app, kind, max_attempts=3, backoff=lambda _: 0)
    async def buy(job: Job) -> Any:
        quote = await job.step("quote", paid_call, 7)
        if job.attempt < 3:
            raise ValueError("fails after the paid call")
        return quote

    assert results(app, [buy.enqueue()]) == [{"price": 7}]
    assert calls == [7]


@KINDS
def test_effects_and_completion_commit_together(app: Faultline, queue: Driver, kind: str) -> None:
    queue.connection.execute("create table paid (order_id integer, attempt integer)")

    @task_of(app, kind, max_attempts=3, backoff=lambda _: 0)
    async def pay(job: Job, order_id: int) -> None:
        async with job.transaction() as tx:
            await tx.execute("insert into paid values (%s, %s)", (order_id, job.attempt))
            await job.step("receipt", lambda: "R1")
            await job.progress("paying")
            if job.attempt == 1:
                raise ValueError("rolls back")
            tx.complete({"order": order_id})
        raise ValueError("code after the completion may run, and changes nothing")

    handle = pay.enqueue(42)

    assert results(app, [handle]) == [{"order": 42}]
    assert queue.connection.execute("select * from paid").fetchall() == [(42, 2)]
    assert queue.job(handle.id).attempt == 2


@KINDS
def test_a_transaction_whose_error_was_swallowed_does_not_pass_for_a_success(
    app: Faultline, queue: Driver, kind: str
) -> None:
    """PostgreSQL would roll back in silence, and the job would succeed without its effects."""
    queue.connection.execute("create table paid (n integer primary key)")

    @task_of(app, kind, max_attempts=1)
    async def pay(job: Job) -> None:
        async with job.transaction() as tx:
            await tx.execute("insert into paid values (1)")
            with contextlib.suppress(psycopg.Error):
                await tx.execute("insert into paid values (1)")

    (error,) = results(app, [pay.enqueue()])

    assert "it cannot be committed" in str(error)
    assert queue.value("select count(*) from paid") == 0


@KINDS
def test_a_jobs_session_has_the_workers_timeouts(app: Faultline, kind: str) -> None:
    """A process that is stopped inside its job's transaction must not keep the job: the server ends the session."""
    settings = ("idle_in_transaction_session_timeout", "lock_timeout", "client_connection_check_interval")
    ask = "select " + ", ".join(f"current_setting('{name}')" for name in settings)

    @task_of(app, kind, max_attempts=1)
    async def look(job: Job) -> Any:
        async with job.transaction() as tx:
            return list(await (await tx.execute(ask)).fetchone() or ())

    assert results(app, [look.enqueue()]) == [["1min", "10s", "2s"]]


@KINDS
def test_a_transaction_inside_a_transaction_is_refused_at_once(app: Faultline, kind: str) -> None:
    @task_of(app, kind, max_attempts=1)
    async def nest(job: Job) -> None:
        async with job.transaction(), job.transaction():
            pass

    (error,) = results(app, [nest.enqueue()])

    assert "already has an open transaction" in str(error)


@KINDS
def test_a_stale_transaction_raises_and_rolls_back(app: Faultline, queue: Driver, kind: str) -> None:
    queue.connection.execute("create table paid (n integer)")
    raised: list[str | None] = []

    def lose_it(job: Job | BlockingJob) -> None:
        queue.connection.execute("update faultline.open_jobs set lease_expires_at = now() - interval '1 minute'")
        queue.reap(notice_dead=False)

    @task_of(app, kind)
    async def pay(job: Job) -> None:
        lose_it(job)
        try:
            async with job.transaction() as tx:
                await tx.execute("insert into paid values (1)")
        except StaleLease as error:
            raised.append(error.reason)
            raise

    handle = pay.enqueue()

    async def story() -> None:
        await auntil(lambda: queue.refusals(handle.id))

    work(app, story)

    assert queue.refusals(handle.id)[0][0] == "fence"
    assert raised[0] in ("lease_lost", "token_mismatch")
    assert queue.value("select count(*) from paid") == 0
