"""The job's transaction cannot be ended from inside: nothing is written unfenced, nor counted as done."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.rows import dict_row

from faultline import BlockingJob, ConfigError, Faultline, FenceBroken, Job
from faultline.attempt.transaction import _start_of
from tests.app.kinds import KINDS, task_of
from tests.worker.working import results

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.driver import Driver

#: What a program may do by mistake; each is refused before it reaches the server.
REFUSED: dict[str, Callable[[Any], Any]] = {
    "commit": lambda tx: tx.connection.commit(),
    "commit of the transaction": lambda tx: tx.commit(),
    "rollback of the transaction": lambda tx: tx.rollback(),
    "rollback": lambda tx: tx.connection.rollback(),
    "close": lambda tx: tx.connection.close(),
    "autocommit": lambda tx: tx.connection.set_autocommit(False),
    "a raw commit": lambda tx: tx.execute("commit"),
    "a raw rollback": lambda tx: tx.execute(" -- why not\n ROLLBACK"),
    "a raw begin": lambda tx: tx.connection.execute(b"/* x */ begin"),
    "commit and chain": lambda tx: tx.cursor().execute("commit and chain"),
    "end": lambda tx: tx.execute("end"),
    "by the cursor's connection": lambda tx: tx.cursor().connection.commit(),
    "two-phase": lambda tx: tx.execute("prepare transaction 'x'"),
}


@KINDS
@pytest.mark.parametrize("how", REFUSED)
def test_ending_the_jobs_transaction_from_inside_is_refused(app: Faultline, queue: Driver, kind: str, how: str) -> None:
    queue.connection.execute("create table paid (n integer)")
    end = REFUSED[how]

    @task_of(app, kind, max_attempts=1)
    async def pay(job: Job) -> None:
        async with job.transaction() as tx:
            await tx.execute("insert into paid values (1)")
            await end(tx)
            await tx.execute("insert into paid values (2)")
            tx.complete("paid")

    (error,) = results(app, [pay.enqueue()])

    assert "ConfigError" in str(error)
    assert "the job's transaction" in str(error)
    assert queue.value("select count(*) from paid") == 0


#: What no client can see coming: the database finds it out.
HIDDEN = {
    "autocommit": "select 1; commit",
    "rolled back": "select 1; rollback",
    "another transaction": "select 1; commit; begin; insert into paid values (3)",
    "chained": "select 1; commit and chain",
}


@KINDS
@pytest.mark.parametrize("completes", [True, False])
@pytest.mark.parametrize("how", HIDDEN)
def test_a_transaction_that_was_ended_behind_our_back_completes_nothing(
    app: Faultline,
    queue: Driver,
    kind: str,
    how: str,
    completes: bool,  # noqa: FBT001
) -> None:
    queue.connection.execute("create table paid (n integer)")

    @task_of(app, kind, max_attempts=3, backoff=lambda _: 0)
    async def pay(job: Job) -> None:
        async with job.transaction() as tx:
            await tx.execute(HIDDEN[how])
            if completes:
                tx.complete("paid")

    handle = pay.enqueue()
    (error,) = results(app, [handle])

    assert "FenceBroken" in str(error)
    assert queue.value("select count(*) from paid") == 0
    # It would only happen again, and what was committed would be doubled.
    assert queue.job(handle.id).attempt == 1


@KINDS
def test_nothing_more_is_sent_once_the_transaction_is_gone(app: Faultline, queue: Driver, kind: str) -> None:
    queue.connection.execute("create table paid (n integer)")

    @task_of(app, kind, max_attempts=1)
    async def pay(job: Job) -> None:
        async with job.transaction() as tx:
            await tx.execute("select 1; commit")
            for write in (tx.execute, tx.connection.execute, tx.cursor().execute):
                with contextlib.suppress(FenceBroken):
                    await write("insert into paid values (2)")
            with contextlib.suppress(FenceBroken):
                await job.step("late", lambda: 1)

    (error,) = results(app, [pay.enqueue()])

    assert "FenceBroken" in str(error)
    assert queue.value("select count(*) from paid") == 0
    assert queue.value("select count(*) from faultline.steps") == 0


@KINDS
def test_a_transaction_that_is_over_can_write_nothing_more(app: Faultline, queue: Driver, kind: str) -> None:
    queue.connection.execute("create table paid (n integer)")

    @task_of(app, kind, max_attempts=1)
    async def pay(job: Job) -> list[str]:
        async with job.transaction() as tx:
            cursor = tx.cursor()
            await cursor.execute("insert into paid values (1)")
            borrowed = tx.connection
        refused = []
        for write in (tx.execute, cursor.execute, borrowed.execute):
            with pytest.raises(ConfigError, match="has ended") as caught:
                await write("insert into paid values (2)")
            refused.append(type(caught.value).__name__)
        return refused

    assert results(app, [pay.enqueue()]) == [["ConfigError"] * 3]
    assert queue.value("select count(*) from paid") == 1


@KINDS
def test_what_belongs_into_a_transaction_goes_on_working(app: Faultline, queue: Driver, kind: str) -> None:
    """Savepoints, cursors and their rows, copies, typed rows, and jobs that are enqueued there."""
    queue.connection.execute("create table paid (n integer)")

    @app.task(name="child")
    async def child() -> None: ...

    @app.task(name="async", max_attempts=1)
    async def pay(job: Job) -> Any:
        async with job.transaction() as tx:
            async with tx.connection.transaction():
                await tx.execute("insert into paid values (1)")
            with contextlib.suppress(psycopg.Error):
                async with tx.connection.transaction():
                    await tx.execute("insert into paid values (2)")
                    await tx.execute("select 1/0")
            await tx.execute("savepoint mine; insert into paid values (3)")
            await tx.execute("rollback to savepoint mine")
            async with tx.cursor(row_factory=dict_row) as cursor:
                await cursor.execute("select n from paid")
                rows = [row async for row in cursor]
            async with tx.cursor() as plain, plain.copy("copy paid from stdin") as copy:
                await copy.write_row((4,))
            await child.using(tx).aenqueue()
            counted = await (await tx.execute("select count(*) from paid")).fetchone()
            assert counted is not None
            tx.complete([rows, counted[0]])

    @app.task(name="blocking", max_attempts=1)
    def pay_blocking(job: BlockingJob) -> Any:
        with job.transaction() as tx:
            with tx.connection.transaction():
                tx.execute("insert into paid values (1)")
            with contextlib.suppress(psycopg.Error), tx.connection.transaction():
                tx.execute("insert into paid values (2)")
                tx.execute("select 1/0")
            tx.execute("savepoint mine; insert into paid values (3)")
            tx.execute("rollback to savepoint mine")
            with tx.cursor(row_factory=dict_row) as cursor:
                cursor.execute("select n from paid")
                rows = list(cursor)
            with tx.cursor() as plain, plain.copy("copy paid from stdin") as copy:
                copy.write_row((4,))
            child.using(tx).enqueue()
            counted = tx.execute("select count(*) from paid").fetchone()
            assert counted is not None
            tx.complete([rows, counted[0]])

    assert results(app, [app.tasks[kind].enqueue()]) == [[[{"n": 1}], 2]]
    assert queue.value("select array_agg(n order by n) from paid") == [1, 4]
    assert queue.value("select count(*) from faultline.jobs where task = 'child'") == 1


@pytest.mark.parametrize(
    ("sql", "word"),
    [
        ("select 1", "select"),
        ("/* report 7 */ select case when true then 1 else 2 /* the rest */ end", "select"),
        (" ;-- a\n/* b /* in b */ still b */ commit", "commit"),
        ("/* x */\n" * 5000 + "end", "end"),
        ("/* without an end", ""),
    ],
)
def test_the_first_word_of_a_statement_is_found_behind_any_number_of_comments(sql: str, word: str) -> None:
    assert sql[_start_of(sql) :].partition(" ")[0] == word
