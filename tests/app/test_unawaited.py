"""A forgotten `await` never looks like success: what was called and never awaited fails the attempt, and nothing commits."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from typing import TYPE_CHECKING, Any

import pytest
from starlette.background import BackgroundTask

from faultline import Cancel, Faultline, FlowHandle, Job, JobHandle, Limits, Schedules, Snooze, Task
from tests.worker.working import results, work

if TYPE_CHECKING:
    from collections.abc import Callable

    from faultline import Transaction
    from tests.driver import Driver

#: What forgets its await, and what the error says of it.
FORGOTTEN: dict[str, tuple[Callable[[Transaction], Any], str, str]] = {
    "tx": (lambda tx: tx.execute("insert into paid values (%s)", (1,)), "tx.execute('insert into paid", "tx.execute"),
    "connection": (lambda tx: tx.connection.execute(b"insert into paid values (1)"), "insert into paid", "tx.execute"),
    "cursor": (lambda tx: tx.cursor().execute("insert into paid values (1)"), "cursor.execute(", "cursor.execute"),
    "many": (
        lambda tx: tx.cursor().executemany("insert into paid values (%s)", [(1,)]),
        "cursor.exec",
        "cursor.executemany",
    ),
}


async def _copy_of(tx: Transaction, write: Callable[[Any], Any]) -> Any:
    async with tx.cursor() as cursor, cursor.copy("copy paid from stdin") as copy:
        return write(copy)


COPIES: dict[str, Callable[[Any], Any]] = {
    "write_row": lambda copy: copy.write_row((1,)),
    "write": lambda copy: copy.write("1\n"),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kept", ["kept", "dropped"])
@pytest.mark.parametrize("completes", ["completes", "returns"])
@pytest.mark.parametrize("how", FORGOTTEN)
def test_a_block_with_a_statement_that_was_never_awaited_commits_nothing(
    app: Faultline, queue: Driver, how: str, completes: str, kept: str
) -> None:
    queue.connection.execute("create table paid (n integer)")
    forget, shown, call = FORGOTTEN[how]

    @app.task(max_attempts=1)
    async def pay(job: Job) -> str:
        async with job.transaction() as tx:
            await tx.execute("insert into paid values (2)")
            forgotten = forget(tx)
            if kept == "dropped":
                del forgotten
            if completes == "completes":
                tx.complete("paid")
        return "paid"

    (error,) = results(app, [pay.enqueue()])

    assert shown in str(error)
    assert "never awaited, so it did not run; nothing of the transaction is committed" in str(error)
    assert f"write: await {call}(…)" in str(error)
    assert queue.value("select count(*) from paid") == 0


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("how", COPIES)
def test_a_row_of_a_copy_that_was_never_awaited_commits_nothing(app: Faultline, queue: Driver, how: str) -> None:
    queue.connection.execute("create table paid (n integer)")

    @app.task(max_attempts=1)
    async def pay(job: Job) -> None:
        async with job.transaction() as tx:
            await tx.execute("insert into paid values (2)")
            await _copy_of(tx, COPIES[how])

    (error,) = results(app, [pay.enqueue()])

    assert f"write: await copy.{how}(…)" in str(error)
    assert queue.value("select count(*) from paid") == 0


def test_a_block_whose_refusal_the_task_caught_is_refused_again(app: Faultline, queue: Driver) -> None:
    queue.connection.execute("create table paid (n integer)")

    @app.task(max_attempts=1)
    async def pay(job: Job) -> None:
        async with job.transaction() as tx:
            tx.execute("insert into paid values (1)")  # type: ignore[unused-coroutine]
            await tx.execute("insert into paid values (2)")
            with contextlib.suppress(Exception):
                tx.complete("paid")

    (error,) = results(app, [pay.enqueue()])

    assert str(error).count("was called and never awaited") == 1
    assert queue.value("select count(*) from paid") == 0


def test_what_is_asked_of_a_statement_without_its_await_says_so(app: Faultline) -> None:
    @app.task(max_attempts=1)
    async def look(job: Job) -> Any:
        async with job.transaction() as tx:
            return tx.execute("select 1").fetchone()  # type: ignore[attr-defined]

    (error,) = results(app, [look.enqueue()])

    assert "tx.execute('select 1') was not awaited, so it has no fetchone; write: await tx.execute(…)" in str(error)


def test_statements_may_be_awaited_later_and_beside_each_other(app: Faultline, queue: Driver) -> None:
    queue.connection.execute("create table paid (n integer)")

    @app.task(max_attempts=1)
    async def pay(job: Job) -> None:
        async with job.transaction() as tx:
            first = tx.execute("insert into paid values (1)")
            third = asyncio.create_task(tx.execute("insert into paid values (3)"))
            await asyncio.gather(first, tx.execute("insert into paid values (2)"))
            await asyncio.wait_for(third, 10)
            tx.complete("paid")

    assert results(app, [pay.enqueue()]) == ["paid"]
    assert queue.value("select array_agg(n order by n) from paid") == [1, 2, 3]


def test_an_error_of_the_block_names_the_statement_that_was_not_awaited_as_well(app: Faultline) -> None:
    seen: list[BaseException] = []

    @app.task(max_attempts=1)
    async def pay(job: Job) -> None:
        try:
            async with job.transaction() as tx:
                forgotten = tx.execute("select 1")
                int(str(forgotten))  # raises
        except ValueError as error:
            seen.append(error)
            raise

    results(app, [pay.enqueue()])

    assert "tx.execute('select 1') was called and never awaited" in seen[0].__notes__[0]


CALLS: dict[str, tuple[Callable[[Job, Faultline], Any], str]] = {
    "progress": (lambda job, _: job.progress(1), "job.progress"),
    "fence": (lambda job, _: job.fence(), "job.fence"),
    "step": (lambda job, _: job.step("one", int), "job.step"),
    "a task's aenqueue": (lambda _, app: app.tasks["other"].aenqueue(), "other.aenqueue"),
    "the app's aenqueue": (lambda _, app: app.aenqueue("other"), "app.aenqueue"),
    "aenqueue_many": (lambda _, app: app.aenqueue_many([]), "app.aenqueue_many"),
    "apublish": (lambda _, app: app.apublish("topic"), "app.apublish"),
    "the handle's acancel": (lambda job, app: JobHandle(app, job.id).acancel(), "handle.acancel"),
    "the handle's aretry": (lambda job, app: JobHandle(app, job.id).aretry(), "handle.aretry"),
    "a schedule's apause": (lambda _, app: app.schedules.apause("nightly"), "schedules.apause"),
    "returned": (lambda job, _: job.progress(1), "job.progress"),
    "raised": (lambda job, _: job.progress(1), "job.progress"),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("how", CALLS)
def test_a_call_that_was_never_awaited_fails_the_attempt(app: Faultline, queue: Driver, how: str) -> None:
    forget, call = CALLS[how]

    @app.task
    def other() -> None: ...

    @app.task(max_attempts=1)
    async def work(job: Job) -> Any:
        forgotten = forget(job, app)
        if how == "raised":
            raise Snooze(1)
        return forgotten if how == "returned" else None

    (error,) = results(app, [work.enqueue()])

    assert f"{call}(…) was called and never awaited, so it did not run; write: await {call}(…)" in str(error)
    assert queue.value("select count(*) from faultline.jobs where task = 'other'") == 0


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", ["async", "blocking"])
def test_an_aenqueue_without_await_fails_the_jobs_of_a_batch(app: Faultline, queue: Driver, kind: str) -> None:
    @app.task
    def other() -> None: ...

    @app.batch_task(name="async", size=2, wait=0.1, max_attempts=1)
    async def work(numbers: list[int]) -> None:
        other.aenqueue()  # type: ignore[unused-coroutine]

    @app.batch_task(name="blocking", size=2, wait=0.1, max_attempts=1)
    def work_in_a_thread(numbers: list[int]) -> None:
        other.aenqueue()  # type: ignore[unused-coroutine]

    errors = results(app, [app.tasks[kind].enqueue(1), app.tasks[kind].enqueue(2)])

    assert all("other.aenqueue(…) was called and never awaited" in str(error) for error in errors)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", ["async", "blocking"])
def test_an_aenqueue_without_await_fails_a_task_that_takes_no_job(app: Faultline, kind: str) -> None:
    @app.task
    def other() -> None: ...

    @app.task(name="async", max_attempts=1)
    async def work() -> None:
        other.aenqueue()  # type: ignore[unused-coroutine]

    @app.task(name="blocking", max_attempts=1)
    def work_in_a_thread() -> None:
        other.aenqueue()  # type: ignore[unused-coroutine]

    (error,) = results(app, [app.tasks[kind].enqueue()])

    assert "other.aenqueue(…) was called and never awaited" in str(error)


def test_a_job_is_not_completed_in_its_transaction_while_a_call_was_never_awaited(app: Faultline, queue: Driver) -> None:
    queue.connection.execute("create table paid (n integer)")

    @app.task(max_attempts=1)
    async def pay(job: Job) -> None:
        job.progress("half")  # type: ignore[unused-coroutine]
        async with job.transaction() as tx:
            await tx.execute("insert into paid values (1)")
            tx.complete("paid")

    (error,) = results(app, [pay.enqueue()])

    assert "job.progress(…) was called and never awaited" in str(error)
    assert queue.value("select count(*) from paid") == 0


def test_calls_in_asyncio_tasks_and_steps_are_awaited_as_before(app: Faultline, queue: Driver) -> None:
    @app.task
    def other() -> None: ...

    @app.task(max_attempts=1)
    async def work(job: Job) -> int:
        await asyncio.gather(job.progress(1), other.aenqueue(), app.aenqueue("other"))
        await job.step("enqueue", _enqueue, app)
        async with asyncio.TaskGroup() as group:
            group.create_task(other.aenqueue())
        await asyncio.to_thread(asyncio.run, other.aenqueue())
        return 5

    assert results(app, [work.enqueue()])[0] == 5
    assert queue.value("select count(*) from faultline.jobs where task = 'other'") == 5


@pytest.mark.parametrize("how", ["returned", "raised", "cancelled"])
def test_a_call_given_to_an_asyncio_task_at_the_very_end_is_not_forgotten(app: Faultline, how: str) -> None:
    begun: list[asyncio.Task[Any]] = []

    @app.task(queue="elsewhere")
    def other() -> None: ...

    @app.task(max_attempts=1)
    async def run() -> str:
        begun.append(asyncio.create_task(other.aenqueue()))
        if how == "raised":
            raise Cancel("no more")
        if how == "cancelled":
            begun[0].cancel()
        return "done"

    async def story() -> list[Any]:
        ended = (await run.aenqueue()).aresult(30)
        return [*await asyncio.gather(ended, return_exceptions=True), *await asyncio.gather(*begun, return_exceptions=True)]

    ended, found = work(app, story)

    assert "never awaited" not in str(ended)
    assert isinstance(found, asyncio.CancelledError if how == "cancelled" else JobHandle)


def test_what_runs_functions_later_sees_that_these_are_async(app: Faultline, queue: Driver) -> None:
    @app.task(queue="elsewhere")
    def other() -> None: ...

    async def respond() -> None:
        await BackgroundTask(other.aenqueue)()
        await BackgroundTask(app.aenqueue, "other")()
        await app.async_database.close()

    asyncio.run(respond())

    assert queue.value("select count(*) from faultline.jobs where task = 'other'") == 2


@pytest.mark.parametrize("kind", [Faultline, FlowHandle, JobHandle, Limits, Schedules, Task])
def test_every_async_twin_must_be_awaited(kind: type[Any]) -> None:
    twins = [
        name
        for name, method in inspect.getmembers(kind, inspect.isfunction)
        if asyncio.iscoroutinefunction(method) and name.startswith("a") and hasattr(kind, name[1:])
    ]

    assert twins
    assert [name for name in twins if not hasattr(getattr(kind, name), "__wrapped__")] == []


async def _enqueue(app: Faultline) -> str:
    return str((await app.tasks["other"].aenqueue()).id)


@pytest.mark.filterwarnings("error")
def test_outside_of_jobs_python_warns_as_of_any_coroutine(app: Faultline) -> None:
    @app.task
    def other() -> None: ...

    call = other.aenqueue()

    assert asyncio.iscoroutine(call)
    call.close()


def test_every_async_call_of_a_job_must_be_awaited() -> None:
    """A call itself remembers that it was made; what the worker calls is not for programs."""
    calls = [
        name
        for name, method in inspect.getmembers(Job, asyncio.iscoroutinefunction)
        if not name.startswith("_") and name not in {"flush_streams", "run_by"}
    ]

    assert "take" in calls
    assert [name for name in calls if not hasattr(getattr(Job, name), "__wrapped__")] == []
