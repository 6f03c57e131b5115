"""What a program does wrong gets a clear error at once, and nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psycopg
import pytest

from faultline import (
    BlockingJob,
    ConfigError,
    Faultline,
    IllegalTransition,
    Job,
    JobFailed,
    JobNotFound,
    JobRejected,
    JobState,
)
from tests.app.kinds import KINDS, task_of
from tests.flow.running import calls, deploys, ended, job_of, journals, signals, waits

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.driver import Driver

FOREIGN = "an asyncio task or thread that the program started makes a call of the flow"


@dataclass
class Approval:
    ok: bool


# Where calls are made

FLOW_CALLS: dict[str, Callable[[Job, Any], Awaitable[Any]]] = {
    "sleep": lambda job, _: job.sleep(1),
    "receive": lambda job, _: job.receive("go", int),
    "do": lambda job, step: job.do(step),
    "patched": lambda job, _: job.patched("change"),
}


@pytest.mark.parametrize("call", FLOW_CALLS)
@pytest.mark.parametrize("position", ["first", "later"])
def test_a_call_in_a_task_of_ones_own_raises_at_once(app: Faultline, call: str, position: str) -> None:
    ran: list[str] = []

    @app.step
    async def step() -> None:
        ran.append("step")

    @app.step
    async def before() -> None:
        ran.append("before")

    async def foreign(job: Job) -> Any:
        return await FLOW_CALLS[call](job, step)

    @app.task(max_attempts=1)
    async def program(job: Job) -> None:
        if position == "later":
            await job.do(before)
        await asyncio.create_task(foreign(job))

    handle = program.enqueue()

    assert FOREIGN in str(ended(app, handle))
    assert "step" not in ran
    assert list(calls(app, handle)) == ([] if position == "first" else ["1"])


@pytest.mark.parametrize("kind", ["async", "blocking"])
def test_a_call_in_a_thread_of_ones_own_raises_at_once(app: Faultline, kind: str) -> None:
    raised: list[BaseException] = []

    def foreign(job: Any) -> None:
        try:
            job.sleep(1)
        except BaseException as error:
            raised.append(error)
            raise

    if kind == "async":

        @app.task(name="program", max_attempts=1)
        async def program(job: Job) -> None:
            await asyncio.to_thread(foreign, job)
    else:

        @app.task(name="program", max_attempts=1)
        def blocking(job: BlockingJob) -> None:
            thread = threading.Thread(target=_quiet, args=(foreign, job))
            thread.start()
            thread.join()

    handle = app.tasks["program"].enqueue()

    assert FOREIGN in str(ended(app, handle))
    assert [type(error) for error in raised] == [ConfigError]
    assert calls(app, handle) == {}


def _quiet(function: Callable[[Any], None], job: Any) -> None:
    with contextlib.suppress(ConfigError):
        function(job)


def test_calls_that_are_awaited_in_tasks_of_ones_own_fail_the_job_even_if_the_errors_are_dropped(app: Faultline) -> None:
    @app.task(max_attempts=1)
    async def program(job: Job) -> list[str]:
        found = await asyncio.gather(_awaited(job.sleep(1)), _awaited(job.receive("go", int)), return_exceptions=True)
        return [type(one).__name__ for one in found]

    handle = program.enqueue()

    assert FOREIGN in str(ended(app, handle))
    assert calls(app, handle) == {}


async def _awaited(call: Awaitable[Any]) -> Any:
    return await call


@KINDS
def test_a_swallowed_suspension_waits_all_the_same_and_runs_nothing_more(app: Faultline, kind: str) -> None:
    ran: list[str] = []

    @app.step
    def after() -> str:
        ran.append("after")
        return "after"

    @task_of(app, kind, max_attempts=1)
    async def program(job: Job) -> Any:
        try:
            got = await job.receive("go", int)
        except BaseException:  # noqa: BLE001 - as careless code does
            ran.append("swallowed")
            return await job.do(after)
        return got

    assert ended(app, program.enqueue(), waits(app), signals(app, "go", 5)) == 5
    assert ran == ["swallowed"]


def test_a_call_that_nobody_awaits_fails_the_job_and_is_named(app: Faultline) -> None:
    @app.step
    async def publish() -> None: ...

    @app.task(max_attempts=1)
    async def program(job: Job) -> str:
        job.do(publish)
        return "done"

    assert "call 1 (publish) was made and never awaited" in str(ended(app, program.enqueue()))


@KINDS
def test_a_wait_inside_a_transaction_is_refused_and_rolls_it_back(app: Faultline, kind: str) -> None:
    with psycopg.connect(app.dsn, autocommit=True) as connection:
        connection.execute("create table written (n int)")

    @task_of(app, kind, max_attempts=1)
    async def program(job: Job) -> None:
        async with job.transaction() as tx:
            await tx.execute("insert into written values (1)")
            await job.sleep(10)

    assert "call 1 (sleep) waits inside job.transaction()" in str(ended(app, program.enqueue()))
    with psycopg.connect(app.dsn) as connection:
        assert connection.execute("select * from written").fetchall() == []


@KINDS
def test_a_time_that_is_past_is_over_at_once(app: Faultline, kind: str) -> None:
    past = datetime.now(UTC) - timedelta(days=1)

    @task_of(app, kind, max_attempts=1)
    async def program(job: Job) -> Any:
        await job.sleep(-5)
        await job.sleep_until(past)
        return await job.receive("go", int, timeout=timedelta(seconds=-5), default=7)

    assert ended(app, program.enqueue()) == 7


# Values


@KINDS
def test_a_child_whose_argument_cannot_be_stored_is_not_enqueued(app: Faultline, kind: str) -> None:
    @task_of(app, kind, name="child")
    async def child(n: Any) -> Any:
        return n

    @task_of(app, kind, max_attempts=1)
    async def program(job: Job) -> Any:
        return await job.map(child, [1, object()])

    handle = program.enqueue()
    error = ended(app, handle)

    assert isinstance(error, JobFailed)
    assert "child" in str(error)
    assert "cannot be stored" in str(error)
    assert calls(app, handle) == {}


def test_a_child_whose_result_cannot_be_stored_fails_its_parent_which_says_why(app: Faultline) -> None:
    @app.task
    async def child() -> Any:
        return object()

    @app.task
    async def program(job: Job) -> Any:
        return await job.call(child)

    error = str(ended(app, program.enqueue()))

    assert "ChildFailed" in error
    assert "cannot be stored" in error


def test_a_signal_that_cannot_be_stored_or_has_no_receiver_is_refused_and_not_kept(app: Faultline, queue: Driver) -> None:
    @app.task
    async def program(job: Job) -> int:
        return await job.receive("go", int)

    handle = program.enqueue()

    with pytest.raises(JobRejected, match="payload of signal go"):
        handle.signal("go", object())
    with pytest.raises(JobNotFound):
        app.signal(UUID(int=7), "go", 1)
    assert ended(app, handle, signals(app, "go", 3)) == 3
    with pytest.raises(IllegalTransition, match="succeeded"):
        handle.signal("go", 4)
    assert queue.value("select count(*) from faultline.signals") == 1


@KINDS
def test_a_payload_that_does_not_fit_fails_the_job_at_once_and_says_what_to_do(app: Faultline, kind: str) -> None:
    runs: list[int] = []

    @task_of(app, kind, max_attempts=5, backoff=lambda _: 0)
    async def program(job: Job) -> bool:
        runs.append(job.fencing_token)
        got: Approval = await job.receive("approval", Approval)
        return got.ok

    handle = program.enqueue()
    error = str(ended(app, handle, waits(app), signals(app, "approval", {"ok": "perhaps"})))

    assert f"job {handle.id}: signal approval was received by call 1, and its payload does not fit Approval" in error
    assert "'perhaps' is not bool" in error
    assert "Retry the job: it asks again at this call. Then send a payload that fits" in error
    assert len(runs) == 2
    assert job_of(app, handle)["state"] == JobState.FAILED


# Graphs


def test_a_graph_with_a_cycle_or_a_job_twice_is_refused_as_a_whole(app: Faultline, queue: Driver) -> None:
    @app.task
    async def node() -> None: ...

    flow = app.flow("odd")
    first = flow.add(node, name="first")
    with pytest.raises(JobRejected, match="named first already"):
        flow.add(node, name="first")
    with pytest.raises(JobRejected, match="comes after the same job twice"):
        flow.add(node, name="second", after=[first, first])
    flow.enqueue()
    enqueued = queue.value("select count(*) from faultline.open_jobs")

    nodes = '[{"name": "a", "task": "node", "after": ["b"]}, {"name": "b", "task": "node", "after": ["a"]}]'
    with psycopg.connect(app.dsn) as connection, pytest.raises(psycopg.Error) as raised:
        connection.execute("select faultline.enqueue_flow(%s)", (nodes,))

    assert str(raised.value.sqlstate).startswith("FL")
    assert queue.value("select count(*) from faultline.open_jobs") == enqueued


# Another program, another isolation


@KINDS
def test_code_that_changed_between_attempts_runs_nothing_and_keeps_the_job(app: Faultline, kind: str) -> None:
    ran: list[str] = []

    @app.step
    def old() -> str:
        ran.append("old")
        return "old"

    @app.step
    def new() -> str:
        ran.append("new")
        return "new"

    @task_of(app, kind, name="changed")
    async def changed(job: Job) -> str:
        text: str = await job.do(new)
        return text

    @task_of(app, kind, max_attempts=2, backoff=lambda _: 0)
    async def program(job: Job) -> str:
        text: str = await job.do(old)
        if job.attempt == 1:
            app.tasks["program"].fn = changed.fn
            raise ValueError("the first attempt fails")
        return text

    original = program.fn

    assert ended(app, program.enqueue(), journals(app, "program_changed"), deploys(app, "program", original)) == "old"
    assert ran == ["old"]


def test_flows_go_on_in_a_database_whose_default_is_repeatable_read(app: Faultline) -> None:
    with psycopg.connect(app.dsn, autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(f"alter database {name} set default_transaction_isolation = 'repeatable read'".encode())

    @app.task
    async def child(n: int) -> int:
        return n

    @app.task
    async def program(job: Job) -> list[int]:
        found = await job.map(child, [1, 2])
        return [*found, await job.receive("go", int)]

    assert ended(app, program.enqueue(), waits(app), signals(app, "go", 3)) == [1, 2, 3]


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_what_decides_about_waits_is_refused_at_a_higher_isolation(app: Faultline, level: str) -> None:
    with psycopg.connect(app.dsn) as connection:
        connection.execute(f"set transaction isolation level {level}".encode())

        with pytest.raises(psycopg.Error, match="resolve") as raised:
            connection.execute("select faultline.resolve()")

    assert raised.value.sqlstate == "FL005"
    assert "read committed" in str(raised.value).lower()


def test_a_signal_to_a_call_takes_its_number_as_text_or_not_and_nothing_else_of_another_type(app: Faultline) -> None:
    @app.task
    async def asks(job: Job) -> Any:
        return await job.receive("go")

    handle = asks.enqueue()

    async def answers(_: Any) -> None:
        for words in ({"name": 7}, {"name": "go", "key": 7}, {"name": "go", "for_call": 1.5}, {"name": ""}):
            with pytest.raises(JobRejected, match="must be text of 1 to"):
                await handle.asignal(**words)
        with pytest.raises(JobRejected, match="idempotency_key must be text"):
            await app.asignal(None, "go", idempotency_key=7)  # type: ignore[arg-type]
        await handle.asignal("go", "yes", for_call=1)

    assert ended(app, handle, waits(app), answers) == "yes"
