"""What broke calls beside each other: abandoned calls, losers of races, and sagas whose undos fail."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from faultline import BlockingJob, ChildFailed, Faultline, Job, JobFailed, StepFailed
from faultline.core.errors import FaultlineError
from tests.app.kinds import KINDS, task_of
from tests.flow.running import calls, children_of, ended, job_of, signals, waits
from tests.flow.test_abandoned import lose_the_first_race
from tests.waiting import auntil
from tests.worker.working import PATIENCE

if TYPE_CHECKING:
    from faultline import JobHandle


@pytest.mark.parametrize("is_first", [True, False])
def test_a_call_beside_one_that_failed_is_closed_and_takes_no_signal(app: Faultline, *, is_first: bool) -> None:
    @app.step
    async def bad() -> None:
        raise ValueError("bad")

    @app.task
    async def program(job: Job) -> list[Any]:
        async def asks() -> int:
            return await job.receive("go", int)

        try:
            if is_first:
                await job.gather(job.do(bad), job.receive("go", int), job.branch(asks))
            else:
                await job.gather(job.receive("go", int), job.branch(asks), job.do(bad))
        except StepFailed:
            return ["instead", await job.receive("go", int)]
        return []

    handle = program.enqueue()

    assert ended(app, handle, waits(app), signals(app, "go", 7)) == ["instead", 7]
    outcomes = {number: call["outcome"] for number, call in calls(app, handle).items()}
    closed = ("2", "3.1") if is_first else ("1", "2.1")
    assert outcomes == {("1" if is_first else "3"): "failed", **dict.fromkeys(closed, "closed"), "4": "done"}


def test_a_failure_that_nobody_catches_closes_nothing(app: Faultline) -> None:
    failed: list[int] = []

    @app.step
    async def bad_once() -> str:
        if not failed:
            failed.append(1)
            raise ValueError("bad")
        return "good"

    @app.task(backoff=lambda _: 0)
    async def program(job: Job) -> list[Any]:
        return list(await job.gather(job.do(bad_once), job.receive("go", int)))

    assert ended(app, program.enqueue(), waits(app), signals(app, "go", 7)) == ["good", 7]


def _trip(app: Faultline, failing: list[str], ran: list[str]) -> tuple[Any, Any]:
    @app.step
    def book(what: str) -> str:
        if what == "car":
            raise RuntimeError("none left")
        ran.append(what)
        return what

    @app.step
    def cancel(_: Any, what: str) -> None:
        if what in failing:
            raise RuntimeError(f"{what} is down")
        ran.append(f"cancel {what}")

    return book, cancel


@KINDS
def test_an_undo_that_fails_keeps_no_other_from_running_and_the_job_has_failed(app: Faultline, kind: str) -> None:
    ran: list[str] = []
    book, cancel = _trip(app, ["hotel"], ran)

    @task_of(app, kind, max_attempts=2, backoff=lambda _: 0)
    async def trip(job: Job) -> str:
        try:
            async with job.saga() as saga:
                for what in ("flight", "hotel", "car"):
                    await saga.do(book, what, undo=cancel)
        except StepFailed as error:
            return f"sorry: {error}"
        return "booked"

    handle = trip.enqueue()
    error = ended(app, handle)

    assert isinstance(error, JobFailed)
    assert "step book failed: RuntimeError: none left" in str(error)
    assert "hotel is down" in str(error)
    assert ran == ["flight", "hotel", "cancel car", "cancel flight"]
    # Its first one, in which the saga failed, and as many as it had to undo it.
    assert job_of(app, handle)["attempt"] == 3


@KINDS
def test_an_undo_that_failed_is_tried_again_by_the_next_attempt(app: Faultline, kind: str) -> None:
    ran: list[str] = []
    failing = ["hotel"]
    book, cancel = _trip(app, failing, ran)

    def next_time(_: int) -> float:
        failing.clear()
        return 0

    @task_of(app, kind, max_attempts=2, backoff=next_time)
    async def trip(job: Job) -> None:
        async with job.saga() as saga:
            for what in ("flight", "hotel", "car"):
                await saga.do(book, what, undo=cancel)

    error = ended(app, trip.enqueue())

    assert "undone by: cancel, cancel, cancel" in str(error)
    assert ran == ["flight", "hotel", "cancel car", "cancel flight", "cancel hotel"]


@KINDS
def test_an_undo_that_used_up_the_attempts_is_tried_again_by_a_retry_and_nothing_else_is(app: Faultline, kind: str) -> None:
    ran: list[str] = []
    failing = ["hotel"]
    book, cancel = _trip(app, failing, ran)

    @task_of(app, kind, max_attempts=1)
    async def trip(job: Job) -> None:
        async with job.saga() as saga:
            for what in ("flight", "hotel", "car"):
                await saga.do(book, what, undo=cancel)

    handle = trip.enqueue()
    assert "hotel is down" in str(ended(app, handle))
    failing.clear()
    app.retry(handle.id)
    error = ended(app, handle)

    assert "undone by: cancel, cancel, cancel" in str(error)
    assert ran == ["flight", "hotel", "cancel car", "cancel flight", "cancel hotel"]


def test_steps_of_branches_are_undone_by_number_whichever_was_quicker(app: Faultline) -> None:
    ran: list[str] = []
    failing = ["b2"]
    book, cancel = _trip(app, failing, ran)

    def next_time(_: int) -> float:
        failing.clear()
        return 0

    @app.task(max_attempts=3, backoff=next_time)
    async def trip(job: Job) -> None:
        quicker = asyncio.Event()

        async with job.saga() as saga:

            async def two(*names: str) -> None:
                if names[0] == "a1" and failing:
                    await quicker.wait()
                for name in names:
                    await saga.do(book, name, undo=cancel)
                quicker.set()

            await job.gather(job.branch(two, "a1", "a2"), job.branch(two, "b1", "b2"))
            await saga.do(book, "car")

    ended(app, trip.enqueue())

    assert ran == ["b1", "b2", "a1", "a2", "cancel b1", "cancel a2", "cancel a1", "cancel b2"]


def test_the_loser_of_a_blocking_race_makes_no_further_calls(app: Faultline) -> None:
    won, asked = threading.Event(), threading.Event()
    ran: list[str] = []

    @app.step
    def slow() -> None:
        won.wait(PATIENCE)

    @app.step
    def charge() -> None:
        ran.append("charged")

    @app.step
    def quick() -> str:
        return "quick"

    @app.step
    def work() -> None:
        won.set()
        asked.wait(PATIENCE)

    @app.task
    def program(job: BlockingJob) -> str:
        def loser() -> str:
            try:
                job.do(slow)
                job.do(charge)
            finally:
                asked.set()
            return "loser"

        _, got = job.race(job.later.branch(loser), job.later.do(quick))
        job.do(work)
        return got

    handle = program.enqueue()

    assert ended(app, handle) == "quick"
    assert ran == []
    assert "1.2" not in calls(app, handle)


def test_all_that_a_loser_has_begun_is_closed_also_beside_a_step_that_runs(app: Faultline) -> None:
    @app.step
    async def slow() -> None:
        await asyncio.sleep(PATIENCE)

    @app.step
    async def quick(job_id: str) -> str:
        def begun() -> bool:
            with psycopg.connect(app.dsn, autocommit=True) as connection:
                query = "select count(*) from faultline.calls where job_id = %s"
                return connection.execute(query, (job_id,)).fetchone() == (2,)

        await auntil(begun, PATIENCE)
        return "quick"

    @app.task(queue="nobody")
    async def child() -> None: ...

    @app.task
    async def program(job: Job) -> str:
        async def loser() -> Any:
            return await job.gather(job.call(child), job.receive("q", str), job.do(slow))

        _, got = await job.race(job.branch(loser), job.do(quick, str(job.id)))
        await job.receive("go", int)
        return str(got)

    async def refused(handle: JobHandle[Any]) -> None:
        with pytest.raises(FaultlineError):
            await signals(app, "q", "yes", for_call="1.2")(handle)

    async def swept(handle: JobHandle[Any]) -> None:
        (child_id,) = children_of(app, handle)
        query = "select state::text from faultline.jobs where id = %s"
        with psycopg.connect(app.dsn, autocommit=True) as connection:
            await auntil(lambda: connection.execute(query, (child_id,)).fetchone() == ("cancelled",), PATIENCE)

    handle = program.enqueue()

    assert ended(app, handle, waits(app), refused, swept, signals(app, "go", 1)) == "quick"
    assert [calls(app, handle)[number]["outcome"] for number in ("1.1", "1.2", "1.3")] == ["closed"] * 3


def test_a_call_of_a_race_that_has_ended_on_record_wins_it(app: Faultline, monkeypatch: pytest.MonkeyPatch) -> None:
    lose_the_first_race(app, monkeypatch)

    @app.task(backoff=lambda _: 0)
    async def program(job: Job) -> list[str]:
        return [(await job.race(job.receive("a", str), job.receive("b", str))).value for _ in range(2)]

    assert ended(app, program.enqueue(), waits(app), signals(app, "b", "B")) == ["B", "A"]


@pytest.mark.parametrize("how", ["fast", "raise", "call"])
def test_a_failed_child_beside_a_wait_wakes_the_job(app: Faultline, how: str) -> None:
    @app.task(max_attempts=1)
    async def bad(n: int) -> None:
        raise ValueError(f"bad {n}")

    @app.task
    async def program(job: Job) -> Any:
        try:
            called: Any = job.call(bad, 1) if how == "call" else job.map(bad, [1, 2], on_failure=how)  # type: ignore[call-overload]
            return await job.gather(called, job.receive("go", int))
        except ChildFailed:
            return "failed"

    assert ended(app, program.enqueue()) == "failed"
