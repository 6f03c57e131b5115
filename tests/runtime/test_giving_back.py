"""Jobs that could not be run through no fault of their own keep their attempts, and somebody is told."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
import random
import threading
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psycopg
import pytest

from faultline import BlockingJob, Faultline, FaultlineError, Job, JobFailed, JobState, Snooze, log_events
from faultline.core.faults import Faults, WireCut
from faultline.core.host import Host
from faultline.core.model import Lease
from faultline.runtime.blame import Blame, Mishap, is_caused_by, of_session
from faultline.runtime.completer import Failed, Released
from faultline.runtime.giving_back import GivingBack
from faultline.runtime.hold import Hold
from faultline.runtime.tally import Tally
from faultline.store import overview
from faultline.store.settings import LOCK_SECONDS
from tests.runtime.working import results, work

if TYPE_CHECKING:
    from collections.abc import Iterator

    from faultline import JobHandle
    from faultline.core.model import JobRecord
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


def cancel(dsn: str, pid: int) -> None:
    """Cancel what this session does as soon as it sleeps or waits for a lock."""
    busy = "select wait_event in ('PgSleep', 'relation') from pg_stat_activity where pid = %s and state = 'active'"
    with psycopg.connect(dsn, autocommit=True) as connection:
        while (row := connection.execute(busy, (pid,)).fetchone()) is None or not row[0]:
            time.sleep(0.01)
        connection.execute("select pg_cancel_backend(%s)", (pid,))


@contextlib.contextmanager
def cancelled(dsn: str, pid: int) -> Iterator[None]:
    canceller = threading.Thread(target=cancel, args=(dsn, pid), daemon=True)
    canceller.start()
    try:
        yield
    finally:
        canceller.join()


@contextlib.contextmanager
def locked(dsn: str, table: str, mode: str = "exclusive") -> Iterator[None]:
    with psycopg.connect(dsn) as connection:
        connection.execute(f"lock table {table} in {mode} mode".encode())
        yield


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


async def cancelled_by_somebody(job: Job, scene: Scene) -> None:
    async with job.transaction() as tx:
        # A limit of its own that is far away does not make it the task's doing.
        await tx.execute("set local statement_timeout = '60s'")
        with cancelled(scene.dsn, tx.connection.info.backend_pid):
            await tx.execute("select pg_sleep(20)")


async def cancelled_in_a_savepoint(job: Job, scene: Scene) -> None:
    async with job.transaction() as tx, tx.connection.transaction():
        with cancelled(scene.dsn, tx.connection.info.backend_pid):
            await tx.execute("select pg_sleep(20)")


async def cancelled_while_it_completes(job: Job, scene: Scene) -> None:
    """A statement of ours, in the job's transaction."""
    with locked(scene.dsn, "faultline.ledger"):
        async with job.transaction() as tx:
            canceller = threading.Thread(target=cancel, args=(scene.dsn, tx.connection.info.backend_pid), daemon=True)
            canceller.start()
            tx.complete("early")


async def its_completion_waits_too_long(job: Job, scene: Scene) -> None:
    with locked(scene.dsn, "faultline.ledger"):
        async with job.transaction() as tx:
            await tx.execute("set local lock_timeout = '50ms'")
            tx.complete("early")


async def its_completion_takes_too_long(job: Job, scene: Scene) -> None:
    """The task has limited its own statements. This one is not its own."""
    with locked(scene.dsn, "faultline.ledger"):
        async with job.transaction() as tx:
            await tx.execute("set local statement_timeout = '100ms'")
            tx.complete("early")


async def idle_for_too_long(job: Job, scene: Scene) -> None:
    """Because another task blocked the event loop, for all that anybody knows."""
    async with job.transaction() as tx:
        await tx.execute("set local idle_in_transaction_session_timeout = '10ms'")
        there = f"select count(*) from pg_stat_activity where pid = {tx.connection.info.backend_pid}"
        while scene.queue.value(there):
            await asyncio.sleep(0.01)
        await tx.execute("select 1")


async def internal_error(job: Job, _: Scene) -> None:
    async with job.transaction() as tx:
        await tx.execute("do $$ begin raise exception 'a bug' using errcode = 'XX000'; end $$")


async def wrapped_inside(job: Job, _: Scene) -> None:
    async with job.transaction() as tx:
        try:
            await tx.execute("do $$ begin raise exception 'full' using errcode = '53100'; end $$")
        except psycopg.Error as error:
            raise RuntimeError("could not pay") from error


async def swallowed_inside(job: Job, _: Scene) -> None:
    """The transaction cannot be committed then, for the same reason."""
    async with job.transaction() as tx:
        with contextlib.suppress(psycopg.Error):
            await tx.execute("do $$ begin raise exception 'full' using errcode = '53100'; end $$")


async def cancelled_while_it_fetches(job: Job, scene: Scene) -> None:
    async with job.transaction() as tx:
        with contextlib.suppress(psycopg.Error), cancelled(scene.dsn, tx.connection.info.backend_pid):
            async with tx.cursor(name="sleepy") as cursor:
                await cursor.execute("select pg_sleep(20)")
                await cursor.fetchall()


async def cancelled_while_it_copies(job: Job, scene: Scene) -> None:
    async with job.transaction() as tx:
        with contextlib.suppress(psycopg.Error), cancelled(scene.dsn, tx.connection.info.backend_pid):
            async with tx.cursor() as cursor, cursor.copy("copy (select pg_sleep(20)) to stdout") as copy:
                async for _ in copy:
                    pass


async def swallowed_before_a_step(job: Job, _: Scene) -> None:
    async with job.transaction() as tx:
        with contextlib.suppress(psycopg.Error):
            await tx.execute("do $$ begin raise exception 'full' using errcode = '53100'; end $$")
        await job.step("next", lambda: 1)


async def copied_onto_a_full_disk(job: Job, _: Scene) -> None:
    async with job.transaction() as tx:
        await tx.execute("create temp table copied (n int)")
        await tx.execute(
            "create function pg_temp.full() returns trigger language plpgsql as"
            " $$ begin raise exception 'full' using errcode = '53100'; end $$"
        )
        await tx.execute("create trigger t before insert on copied for each row execute function pg_temp.full()")
        async with tx.cursor() as cursor, cursor.copy("copy copied from stdin") as copy:
            await copy.write_row((1,))


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


async def own_statement_timeout(job: Job, _: Scene) -> None:
    async with job.transaction() as tx:
        await tx.execute("set local statement_timeout = '20ms'")
        await tx.execute("select pg_sleep(20)")


async def own_lock_timeout(job: Job, scene: Scene) -> None:
    with locked(scene.dsn, "faultline.ledger"):
        async with job.transaction() as tx:
            await tx.execute("set local lock_timeout = '20ms'")
            await tx.execute("lock table faultline.ledger in share mode")


async def no_wait(job: Job, scene: Scene) -> None:
    with locked(scene.dsn, "faultline.ledger"):
        async with job.transaction() as tx:
            await tx.execute("lock table faultline.ledger in share mode nowait")


async def no_wait_out_of_a_stream(job: Job, scene: Scene) -> None:
    """Past the guards: nobody has taken the time of its statement."""
    with psycopg.connect(scene.dsn) as other:
        other.execute("select from faultline.settings for update")
        async with job.transaction() as tx, tx.cursor() as cursor:
            async for _ in cursor.stream("select 1 from faultline.settings for update nowait"):
                pass


async def duplicate(job: Job, _: Scene) -> None:
    async with job.transaction() as tx:
        await tx.execute("create temp table once (n int primary key deferrable initially deferred)")
        await tx.execute("insert into once values (1), (1)")


async def another_role(job: Job, scene: Scene) -> None:
    scene.queue.connection.execute("drop role if exists faultline_test_nobody")
    scene.queue.connection.execute("create role faultline_test_nobody")
    async with job.transaction() as tx:
        await tx.execute("set role faultline_test_nobody")


async def mistake_before_a_step(job: Job, _: Scene) -> None:
    async with job.transaction() as tx:
        with contextlib.suppress(psycopg.Error):
            await tx.execute("select * from nowhere")
        await job.step("next", lambda: 1)


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


BY_THE_DATABASE: list[Misfortune] = [
    session_ended, conflict, full_disk, wrapped, in_a_group, no_answer_in_time, cancelled_by_somebody,
    cancelled_in_a_savepoint, cancelled_while_it_completes, its_completion_waits_too_long,
    its_completion_takes_too_long, internal_error, wrapped_inside, swallowed_inside, swallowed_before_a_step,
    cancelled_while_it_fetches, cancelled_while_it_copies,
    copied_onto_a_full_disk, idle_for_too_long,
]  # fmt: skip
BY_THE_TASK: list[Misfortune] = [
    another_database_lost, mistake_in_sql, handled_then_another, raised_from_none, own_statement_timeout, own_lock_timeout,
    no_wait, no_wait_out_of_a_stream, duplicate, another_role, mistake_before_a_step,
]  # fmt: skip


@pytest.mark.parametrize("misfortune", BY_THE_DATABASE)
def test_what_the_database_does_uses_up_no_attempt(
    app: Faultline, queue: Driver, dsn: str, log: io.StringIO, misfortune: Misfortune
) -> None:
    assert run_once_unlucky(app, queue, dsn, misfortune) == ("done", 2)

    (warning,) = logged(log, "attempt_interrupted")
    assert (warning["level"], warning["task"], warning["times"]) == ("warning", "unlucky", 1)
    assert queue.value("select count(*) from faultline.journal") == 0


@pytest.mark.parametrize("misfortune", BY_THE_TASK)
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


def terminated_in_thread(job: BlockingJob, dsn: str) -> None:
    with job.transaction() as tx:
        terminate(dsn, tx.connection.info.backend_pid)
        tx.execute("select 1")


def cancelled_in_thread(job: BlockingJob, dsn: str) -> None:
    with job.transaction() as tx, cancelled(dsn, tx.connection.info.backend_pid):
        tx.execute("select pg_sleep(20)")


def completion_waits_in_thread(job: BlockingJob, dsn: str) -> None:
    with locked(dsn, "faultline.ledger"), job.transaction() as tx:
        tx.execute("set local lock_timeout = '50ms'")
        tx.complete("early")


def swallowed_in_thread(job: BlockingJob, _: str) -> None:
    with job.transaction() as tx, contextlib.suppress(psycopg.Error):
        tx.execute("do $$ begin raise exception 'full' using errcode = '53100'; end $$")


def cancelled_while_it_fetches_in_thread(job: BlockingJob, dsn: str) -> None:
    with (
        job.transaction() as tx,
        contextlib.suppress(psycopg.Error),
        cancelled(dsn, tx.connection.info.backend_pid),
        tx.cursor(name="sleepy") as cursor,
    ):
        cursor.execute("select pg_sleep(20)")
        cursor.fetchall()


def own_timeout_in_thread(job: BlockingJob, _: str) -> None:
    with job.transaction() as tx:
        tx.execute("set local statement_timeout = '20ms'")
        tx.execute("select pg_sleep(20)")


BlockingMisfortune = Callable[[BlockingJob, str], None]


def run_once_unlucky_in_thread(app: Faultline, dsn: str, misfortune: BlockingMisfortune) -> tuple[Any, int]:
    runs = 0

    @app.task(max_attempts=1)
    def unlucky(job: BlockingJob) -> str:
        nonlocal runs
        runs += 1
        if runs == 1:
            misfortune(job, dsn)
        return "done"

    return results(app, [unlucky.enqueue()])[0], runs


@pytest.mark.parametrize(
    "misfortune",
    [
        terminated_in_thread,
        cancelled_in_thread,
        completion_waits_in_thread,
        swallowed_in_thread,
        cancelled_while_it_fetches_in_thread,
    ],
)
def test_a_blocking_task_loses_no_attempt_to_the_database_either(
    app: Faultline, dsn: str, misfortune: BlockingMisfortune
) -> None:
    assert run_once_unlucky_in_thread(app, dsn, misfortune) == ("done", 2)


def test_what_a_blocking_task_does_is_its_own_failure(app: Faultline, dsn: str) -> None:
    found, runs = run_once_unlucky_in_thread(app, dsn, own_timeout_in_thread)

    assert isinstance(found, JobFailed)
    assert runs == 1


@pytest.mark.parametrize(("seconds", "blame"), [(LOCK_SECONDS, Blame.DATABASE), (LOCK_SECONDS - 1, Blame.TASK)])
def test_a_lock_that_was_not_free_within_the_engines_own_limit_is_not_the_tasks_failure(
    seconds: float, blame: Blame
) -> None:
    assert Mishap(psycopg.errors.LockNotAvailable(), seconds).blame is blame


class CommitCut(Faults):
    """The first commit is not sent, and meanwhile something else happens."""

    wanted = True

    def __init__(self, then: Callable[[], None]) -> None:
        self._then: Callable[[], None] | None = then

    def reach(self, point: str) -> None:
        if point == "before_commit_sent" and self._then is not None:
            then, self._then = self._then, None
            then()
            raise WireCut(point)


def test_a_question_for_a_lost_commit_that_fails_uses_up_no_attempt(dsn: str, queue: Driver) -> None:
    waiting = "from pg_stat_activity where datname = current_database() and wait_event = 'relation' and query ~ "

    def lock_the_ledger_and_cancel_the_question() -> None:
        with locked(dsn, "faultline.ledger", "access exclusive"), psycopg.connect(dsn, autocommit=True) as connection:
            question = f"select pg_cancel_backend(pid) {waiting} 'from faultline.jobs'"
            while not connection.execute(question.encode()).fetchall():
                time.sleep(0.01)

    def while_the_job_holds_the_ledger() -> None:
        threading.Thread(target=lock_the_ledger_and_cancel_the_question, daemon=True).start()
        while not queue.value(f"select count(*) {waiting} '^lock table'"):
            time.sleep(0.01)

    runs = 0
    with Faultline(dsn, host=Host(faults=CommitCut(while_the_job_holds_the_ledger))) as app:

        @app.task(max_attempts=1)
        async def unlucky(job: Job) -> None:
            nonlocal runs
            runs += 1
            async with job.transaction() as tx:
                tx.complete("done")

        handle = unlucky.enqueue()

        async def until_it_ended() -> None:
            while queue.value("select count(*) from faultline.open_jobs where state in ('queued', 'running')"):
                await asyncio.sleep(0.01)

        work(app, until_it_ended)

    assert (queue.job(handle.id).state, runs) == (JobState.SUCCEEDED, 2)


def held(token: int = 1, *, attempt: int = 1, max_attempts: int = 2) -> Hold:
    lease = Lease(UUID(int=1), token, "w/1", "t", {}, attempt, max_attempts, False, 0, 0, datetime.now(UTC), 30.0, None)
    return Hold(lease, 0.0, Tally(lambda: 0.0).of("default"))


def delay(ending: Released | Failed) -> float:
    assert isinstance(ending, Released)
    return ending.delay_seconds or 0.0


GONE = ValueError("gone")


def given_back(times: int, *, token: int = 1) -> list[float]:
    """For how long a job of an unknown task is given back, one time after the other."""
    giving_back = GivingBack(random.Random(1), lambda: 0.0)
    return [giving_back.unknown_task(held(token + n), []).delay_seconds or 0.0 for n in range(times)]


@pytest.mark.parametrize("token", [1, 1_800_000_000_000_000])
def test_a_job_of_an_unknown_task_comes_back_soon_and_less_and_less_often(token: int) -> None:
    """Also where `recover` has raised the tokens."""
    delays = given_back(200, token=token)

    # A worker that knows the task may stand beside this one: twenty tries in the first two minutes.
    assert sum(delays[:20]) < 120
    assert delays[0] < 1
    assert 45 <= delays[-1] <= 75


def test_many_jobs_of_an_unknown_task_do_not_keep_the_worker_busy() -> None:
    giving_back = GivingBack(random.Random(1), lambda: 0.0)
    counts = Tally(lambda: 0.0).of("default")
    rest: tuple[Any, ...] = ("w/1", "t", {}, 1, 1, False, 0, 0, datetime.now(UTC), 30.0, None)

    delays = [
        giving_back.unknown_task(Hold(Lease(UUID(int=n), 1, *rest), 0.0, counts), []).delay_seconds or 0.0
        for n in range(10_000)
    ]

    assert delays[49] < 1
    assert 7 < delays[999] < 13
    assert 45 <= delays[-1] <= 75


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

    delays = [delay(giving_back.interrupted(held(token), GONE)) for token in range(1, 11)]

    assert 0.7 < delays[0] < 1.3
    assert delays[:6] == sorted(delays[:6])
    assert all(45 <= seconds <= 75 for seconds in delays[6:])


def test_a_job_that_is_interrupted_every_time_uses_up_attempts_after_ten_minutes() -> None:
    giving_back = GivingBack(random.Random(1), lambda: 0.0)

    given_back = [giving_back.interrupted(held(token), GONE) for token in range(1, 16)]
    counted = [giving_back.interrupted(held(16), GONE), giving_back.interrupted(held(17, attempt=2), GONE)]
    retried = giving_back.interrupted(held(18, attempt=1), GONE)

    assert isinstance(retried, Released)
    assert sum(map(delay, given_back)) > 450
    assert ["interrupted by the database 16 times in a row" in failed(ending) for ending in counted] == [True, False]
    assert "gone" in failed(counted[1])


def failed(ending: Released | Failed) -> str:
    assert isinstance(ending, Failed)
    return str(ending.failure.error)


def test_what_happened_elsewhere_between_two_interruptions_is_not_held_against_the_job() -> None:
    """Others may have given it back for reasons of their own, or it slept there: a job that polls does so all day."""
    giving_back = GivingBack(random.Random(1), lambda: 0.0)

    few = [giving_back.interrupted(held(token), GONE) for token in (5, 400, 800)]
    many = [giving_back.interrupted(held(token), GONE) for token in range(10_000, 60_000, 2000)]

    assert all(isinstance(ending, Released) for ending in (*few, *many))


def test_a_job_that_failed_by_itself_meanwhile_was_not_interrupted_in_a_row(app: Faultline, queue: Driver) -> None:
    runs = 0

    @app.task(max_attempts=2)
    async def unlucky(job: Job) -> str:
        nonlocal runs
        runs += 1
        if runs == 11:
            raise ValueError("the database was fine")
        if runs < 18:
            await conflict(job, Scene(queue, ""))
        return "done"

    job = run_without_delays(app, queue, unlucky.enqueue())

    assert (job.state, job.attempt, job.fencing_token) == (JobState.SUCCEEDED, 2, 18)


def test_errors_that_go_round_in_a_circle_are_judged() -> None:
    """As `raise group.exceptions[0]` makes them."""
    cause, other = ValueError("cause"), ValueError("other")
    group = ExceptionGroup("several", [cause, other])
    for part in (cause, other):
        part.__context__ = group
    both = ExceptionGroup("both", [KeyError(1), KeyError(2)])
    for one in both.exceptions:
        one.__cause__ = cause

    assert is_caused_by(cause, [cause])
    assert not is_caused_by(other, [cause])
    assert is_caused_by(other, [cause, other])
    assert is_caused_by(both, [cause])
    assert of_session(other) == []


def test_a_job_that_slept_meanwhile_was_not_interrupted_in_a_row() -> None:
    giving_back = GivingBack(random.Random(1), lambda: 0.0)

    for token in range(1, 100, 2):
        ending = giving_back.interrupted(held(token), GONE)
        giving_back.went_well(held(token + 1).lease)

        assert isinstance(ending, Released)


def test_a_task_that_ends_its_own_session_every_time_fails_in_the_end(app: Faultline, queue: Driver) -> None:
    @app.task(max_attempts=2)
    async def suicidal(job: Job) -> None:
        async with job.transaction() as tx:
            await tx.execute("select pg_terminate_backend(pg_backend_pid())")

    job = run_without_delays(app, queue, suicidal.enqueue())

    assert (job.attempt, job.fencing_token) == (2, 17)
    assert "interrupted by the database 17 times in a row" in (job.last_error or "")


def test_a_task_that_sleeps_between_its_interruptions_is_never_charged(app: Faultline, queue: Driver) -> None:
    runs = 0

    @app.task(max_attempts=1)
    async def patient(job: Job) -> object:
        nonlocal runs
        runs += 1
        if runs % 2:
            await conflict(job, Scene(queue, ""))
        return "done" if runs == 40 else Snooze(60)

    job = run_without_delays(app, queue, patient.enqueue())

    assert (job.state, job.attempt, job.fencing_token) == (JobState.SUCCEEDED, 1, 40)


AT_ONCE = b"""with due as (
  update faultline.open_jobs set next_run_at = faultline.clock() where state = 'queued' returning queue
)
select faultline.wake(queue, 0, faultline.clock()) from due"""


def run_without_delays(app: Faultline, queue: Driver, handle: JobHandle[Any]) -> JobRecord:
    """Until it has ended."""

    async def until_it_ended() -> None:
        while queue.job(handle.id).state in (JobState.QUEUED, JobState.RUNNING):
            queue.connection.execute(AT_ONCE)
            await asyncio.sleep(0.02)

    work(app, until_it_ended)
    return queue.job(handle.id)
