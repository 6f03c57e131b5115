"""What the database did to a job uses up no attempt; what the task did itself is its failure."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from faultline import BlockingJob, Faultline, Job, JobFailed, JobState
from faultline.attempt.error_attribution import Blame, Mishap, is_caused_by, of_session
from faultline.core.faults import Faults, WireCut
from faultline.core.host import Host
from faultline.store.connection.session_settings import LOCK_SECONDS
from tests.waiting import auntil
from tests.worker.misfortunes import (
    BY_THE_DATABASE,
    BY_THE_TASK,
    Misfortune,
    Scene,
    cancelled,
    locked,
    mistake_in_sql,
    run_once_unlucky,
    terminate,
)
from tests.worker.working import logged, results, work

if TYPE_CHECKING:
    import io

    from tests.conftest import NewLogin
    from tests.driver import Driver


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
    error = psycopg.errors.LockNotAvailable()

    assert Mishap(error, seconds, ours=False, raised=error).blame is blame


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
            unfinished = "select count(*) from faultline.open_jobs where state in ('queued', 'running')"
            await auntil(lambda: not queue.value(unfinished))

        work(app, until_it_ended)

    assert (queue.job(handle.id).state, runs) == (JobState.SUCCEEDED, 2)


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


def test_a_group_that_was_raised_because_of_an_error_is_caused_by_it_and_one_that_tells_of_it_is_not() -> None:
    cause = ValueError("cause")
    wrapping, told = ExceptionGroup("wrapping", [KeyError(1)]), ExceptionGroup("told", [KeyError(1), cause])
    wrapping.__cause__ = told.__context__ = cause

    assert is_caused_by(wrapping, [cause])
    assert not is_caused_by(told, [cause])


@pytest.mark.parametrize("verb", ["complete", "same_transaction"])
def test_a_right_that_the_login_has_lost_for_a_while_uses_up_no_attempt(
    dsn: str, queue: Driver, new_login: NewLogin, verb: str
) -> None:
    login = new_login("in role faultline_worker, faultline_producer")
    function = queue.value("select oid::regprocedure::text from pg_proc where proname = %s", verb)
    runs = 0

    async def run(job: Job) -> str:
        nonlocal runs
        runs += 1
        changed = "revoke {} from" if runs == 1 else "grant {} to"
        right = f"execute on function {function}"
        queue.connection.execute(f"{changed.format(right)} faultline_worker".encode())
        async with job.transaction() as tx:
            if verb == "complete":
                tx.complete("done")
        return "done"

    with Faultline(make_conninfo(dsn, user=login)) as app:
        task = app.task(max_attempts=1)(run)
        assert results(app, [task.enqueue()]) == ["done"]
    assert runs == 2
