"""Jobs that could not be run through no fault of their own keep their attempts, and somebody is told."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
import random
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psycopg
import pytest

from faultline import BlockingJob, Faultline, FaultlineError, Job, JobFailed, JobState, log_events
from faultline.core.model import Lease
from faultline.runtime.giving_back import GivingBack
from faultline.runtime.hold import Hold
from faultline.runtime.tally import Tally
from faultline.store import overview
from tests.runtime.working import results, work

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.driver import Driver


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    handler = log_events(stream)
    yield stream
    logging.getLogger("faultline").removeHandler(handler)
    logging.getLogger("faultline").setLevel(logging.NOTSET)


def logged(log: io.StringIO, event: str) -> list[dict[str, Any]]:
    return [line for line in map(json.loads, log.getvalue().splitlines()) if line["event"] == event]


def test_jobs_of_an_unknown_task_are_given_back_with_their_attempt_and_a_delay(
    app: Faultline, queue: Driver, log: io.StringIO
) -> None:
    @app.task
    async def known() -> None: ...

    jobs = [queue.enqueue("unheard_of", max_attempts=1) for _ in range(30)]

    async def until_all_were_given_back() -> None:
        given_back = "select count(*) from faultline.open_jobs where state = 'queued' and fencing_token > 0"
        while queue.value(given_back) < len(jobs):
            await asyncio.sleep(0.01)

    work(app, until_all_were_given_back)

    assert {(queue.job(job).state, queue.job(job).attempt) for job in jobs} == {(JobState.QUEUED, 0)}
    waits = queue.value("select array_agg(extract(epoch from next_run_at - claimed_at)::float8) from faultline.open_jobs")
    assert all(0.3 < wait < 10 for wait in waits)
    assert queue.value("select count(*) from faultline.journal") == 0
    (warning,) = logged(log, "task_unknown")
    assert (warning["level"], warning["task"], warning["known"]) == ("warning", "unheard_of", "known")


def test_a_worker_that_knows_the_task_runs_what_another_gave_back(app: Faultline, queue: Driver, dsn: str) -> None:
    job_id = queue.enqueue("fresh", max_attempts=1)

    async def until_given_back() -> None:
        while queue.job(job_id).fencing_token == 0 or queue.state(job_id) is not JobState.QUEUED:
            await asyncio.sleep(0.01)

    work(app, until_given_back)
    queue.connection.execute("update faultline.open_jobs set next_run_at = faultline.now()")

    with Faultline(dsn) as newer:

        @newer.task
        async def fresh() -> str:
            return "ran"

        assert results(newer, [newer.handle(job_id)]) == ["ran"]


def test_a_worker_tells_which_tasks_it_knows(app: Faultline, queue: Driver) -> None:
    @app.task
    async def pay() -> None: ...

    @app.task(name="mail")
    async def send() -> None: ...

    async def until_told() -> list[str]:
        while not (lines := queue.run(overview.workers())) or lines[0].tasks is None:
            await asyncio.sleep(0.01)
        return lines[0].tasks

    assert work(app, until_told) == ["mail", "pay"]


def terminate(dsn: str, pid: int) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("select pg_terminate_backend(%s, 5000)", (pid,))


FAIL_ONCE = (
    "create sequence public.failures",
    """create function public.fail_once() returns trigger language plpgsql as $$ begin
    if nextval('public.failures') = 1 then raise exception 'no space left on device' using errcode = '53100'; end if;
    return new; end $$""",
    """create trigger zz_fail_once before update on faultline.open_jobs for each row
    when (new.progress is distinct from old.progress) execute function public.fail_once()""",
)


class Scene:
    """What a misfortune needs to happen."""

    def __init__(self, queue: Driver, dsn: str) -> None:
        self.queue = queue
        self.dsn = dsn


async def session_ended(job: Job, scene: Scene) -> None:
    async with job.transaction() as tx:
        await asyncio.to_thread(terminate, scene.dsn, tx.connection.info.backend_pid)
        await tx.execute("select 1")


async def conflict(job: Job, _: Scene) -> None:
    async with job.transaction() as tx:
        await tx.execute("do $$ begin raise exception 'again' using errcode = '40001'; end $$")


async def full_disk(job: Job, _: Scene) -> None:
    await job.progress("half")


async def wrapped(job: Job, scene: Scene) -> None:
    try:
        await session_ended(job, scene)
    except FaultlineError as error:
        raise RuntimeError("could not pay") from error


async def in_a_group(job: Job, _: Scene) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(job.progress("half"))


async def no_answer_in_time(job: Job, scene: Scene) -> None:
    with scene.queue.connection.transaction():
        scene.queue.connection.execute("lock table faultline.open_jobs in access exclusive mode")
        async with asyncio.timeout(2.5):
            await job.progress("half")


async def another_database_lost(job: Job, scene: Scene) -> None:
    async with job.transaction():
        with psycopg.connect(scene.dsn, autocommit=True) as other:
            await asyncio.to_thread(terminate, scene.dsn, other.info.backend_pid)
            other.execute("select 1")


async def mistake_in_sql(job: Job, _: Scene) -> None:
    async with job.transaction() as tx:
        await tx.execute("select * from nowhere")


async def handled_then_another(job: Job, _: Scene) -> None:
    with contextlib.suppress(psycopg.Error, FaultlineError):
        await job.progress("half")
    raise ValueError("mine")


async def raised_from_none(job: Job, _: Scene) -> None:
    try:
        await job.progress("half")
    except (psycopg.Error, FaultlineError):
        raise ValueError("mine") from None


Misfortune = Callable[[Job, Scene], Awaitable[None]]


def run_once_unlucky(app: Faultline, queue: Driver, dsn: str, misfortune: Misfortune) -> tuple[Any, int]:
    """The result of a job with one attempt, whose first run meets with this; and how often it ran."""
    runs = 0
    for statement in FAIL_ONCE:
        queue.connection.execute(statement.encode())

    @app.task(max_attempts=1)
    async def unlucky(job: Job) -> str:
        nonlocal runs
        runs += 1
        if runs == 1:
            await misfortune(job, Scene(queue, dsn))
        return "done"

    return results(app, [unlucky.enqueue()])[0], runs


@pytest.mark.parametrize("misfortune", [session_ended, conflict, full_disk, wrapped, in_a_group, no_answer_in_time])
def test_what_the_database_does_uses_up_no_attempt(
    app: Faultline, queue: Driver, dsn: str, log: io.StringIO, misfortune: Misfortune
) -> None:
    assert run_once_unlucky(app, queue, dsn, misfortune) == ("done", 2)

    (warning,) = logged(log, "attempt_interrupted")
    assert (warning["level"], warning["task"], warning["times"]) == ("warning", "unlucky", 1)
    assert queue.value("select count(*) from faultline.journal") == 0


@pytest.mark.parametrize("misfortune", [another_database_lost, mistake_in_sql, handled_then_another, raised_from_none])
def test_what_the_task_does_is_its_own_failure(app: Faultline, queue: Driver, dsn: str, misfortune: Misfortune) -> None:
    found, runs = run_once_unlucky(app, queue, dsn, misfortune)

    assert isinstance(found, JobFailed)
    assert runs == 1


async def many_quick_calls(job: Job) -> None:
    while True:
        await job.progress("half")


async def slow_statement(job: Job) -> None:
    async with job.transaction() as tx:
        await tx.execute("select pg_sleep(20)")


async def own_timeout(job: Job) -> None:
    async with asyncio.timeout(0.3):
        await many_quick_calls(job)


@pytest.mark.parametrize(
    ("task", "error"),
    [(many_quick_calls, "timed out after 0.5 s"), (slow_statement, "timed out after 0.5 s"), (own_timeout, "TimeoutError")],
)
def test_a_task_that_takes_too_long_uses_up_its_attempts_whatever_it_does_meanwhile(
    app: Faultline, queue: Driver, task: Callable[[Job], Awaitable[None]], error: str
) -> None:
    """The timeout may fall into a call of ours, or the session be cut under a statement: the database has done nothing."""
    slow = app.task(max_attempts=2, timeout=0.5, backoff=lambda _: 0.0)(task)

    handle = slow.enqueue()
    (found,) = results(app, [handle])

    assert isinstance(found, JobFailed)
    job = queue.job(handle.id)
    assert (job.attempt, error in (job.last_error or "")) == (2, True)


def test_a_mistake_in_the_tasks_own_sql_is_told_as_such(app: Faultline, queue: Driver) -> None:
    @app.task(max_attempts=1)
    async def asynchronous(job: Job) -> None:
        await mistake_in_sql(job, Scene(queue, ""))

    @app.task(max_attempts=1)
    def blocking(job: BlockingJob) -> None:
        with job.transaction() as tx:
            tx.execute("select no_such_function(1)")

    handles = [asynchronous.enqueue(), blocking.enqueue()]
    results(app, handles)

    told = [queue.job(handle.id).last_error or "" for handle in handles]
    assert "UndefinedTable" in told[0]
    assert "nowhere" in told[0]
    assert "UndefinedFunction" in told[1]
    assert all("faultline migrate" not in text and __file__ in text for text in told)


def test_a_blocking_task_loses_no_attempt_to_the_database_either(app: Faultline, queue: Driver, dsn: str) -> None:
    runs = 0

    @app.task(max_attempts=1)
    def unlucky(job: BlockingJob) -> str:
        nonlocal runs
        runs += 1
        if runs == 1:
            with job.transaction() as tx:
                terminate(dsn, tx.connection.info.backend_pid)
                tx.execute("select 1")
        return "done"

    assert results(app, [unlucky.enqueue()]) == ["done"]
    assert runs == 2


def unknown_after(claims: int, jobs: int = 1) -> float:
    """How long a job of an unknown task is given back for that was claimed so often, the last of so many."""
    giving_back = GivingBack(random.Random(1), lambda: 0.0)
    lease = Lease(UUID(int=1), claims, "w/1", "t", {}, 1, 1, False, 0, 0, datetime.now(UTC), 30.0, None)
    hold = Hold(lease, 0.0, Tally(lambda: 0.0).of("default"))
    return [giving_back.unknown_task(hold, []).delay_seconds or 0.0 for _ in range(jobs)][-1]


def test_a_job_of_an_unknown_task_comes_back_soon_and_less_and_less_often() -> None:
    # A worker that knows the task may stand beside this one: twenty tries in the first two minutes.
    assert sum(unknown_after(claims) for claims in range(1, 21)) < 120
    assert unknown_after(1) < 1
    assert 45 <= unknown_after(1000) <= 75


def test_many_jobs_of_an_unknown_task_do_not_keep_the_worker_busy() -> None:
    assert unknown_after(1, jobs=50) < 1
    assert 7 < unknown_after(1, jobs=1000) < 13
    assert 45 <= unknown_after(1, jobs=100_000) <= 75


def test_an_unknown_task_is_told_of_once_a_minute_with_how_many_jobs_met_it(log: io.StringIO) -> None:
    now = [100.0]
    giving_back = GivingBack(random.Random(1), lambda: now[0])
    lease = Lease(UUID(int=1), 1, "w/1", "t", {}, 1, 1, False, 0, 0, datetime.now(UTC), 30.0, None)
    hold = Hold(lease, 0.0, Tally(lambda: 0.0).of("default"))

    for seconds in (0, 1, 58, 2, 1):
        now[0] += seconds
        giving_back.unknown_task(hold, ["known"])

    assert [line["jobs"] for line in logged(log, "task_unknown")] == [1, 3]


def test_interruptions_come_less_and_less_often() -> None:
    giving_back = GivingBack(random.Random(1), lambda: 0.0)
    lease = Lease(UUID(int=1), 1, "w/1", "t", {}, 1, 1, False, 0, 0, datetime.now(UTC), 30.0, None)
    hold = Hold(lease, 0.0, Tally(lambda: 0.0).of("default"))

    delays = [giving_back.interrupted(hold, ValueError("gone")).delay_seconds or 0.0 for _ in range(10)]

    assert 0.7 < delays[0] < 1.3
    assert delays[:6] == sorted(delays[:6])
    assert all(45 <= delay <= 75 for delay in delays[6:])
