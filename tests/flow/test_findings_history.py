"""What a program caught and went on from: every later run must see the same there, or the run is over."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import psycopg
import pytest

from faultline import BlockingJob, Faultline, Job, JobFailed, Retries, StepFailed
from tests.app.kinds import KINDS, task_of
from tests.flow.running import calls, ended, journal, signals, waits


class Flaky:
    """A step that fails the first time, and one that tells what it was given."""

    def __init__(self, app: Faultline) -> None:
        self.ran: list[Any] = []
        ran = self.ran

        @app.step
        def flaky() -> str:
            ran.append("flaky")
            if len(ran) == 1:
                raise ValueError("down")
            return "up"

        @app.step
        def tell(what: str) -> str:
            ran.append(what)
            return what

        self.flaky = flaky
        self.tell = tell


@KINDS
@pytest.mark.parametrize("what", ["call", "gather", "race"])
def test_a_failure_is_history_for_a_call_that_was_made_before_it_and_awaited_after(
    app: Faultline, kind: str, what: str
) -> None:
    steps = Flaky(app)

    @task_of(app, kind)
    async def program(job: Job) -> str:
        make: Any = getattr(job, "later", job)
        first, then = make.do(steps.flaky), make.do(steps.tell, "next")
        after = then if what == "call" else make.gather(then) if what == "gather" else make.race(make.gather(then))
        try:
            answer = await first.now()
        except StepFailed:
            answer = "fallback"
        await after.now()
        await job.receive("go", int)
        return str(answer)

    handle = program.enqueue()

    assert ended(app, handle, waits(app), signals(app, "go", 1)) == "fallback"
    assert steps.ran == ["flaky", "next"]
    assert calls(app, handle)["1"]["outcome"] == "failed"


def test_a_failure_beside_a_nested_gather_is_not_history_before_the_program_went_on(app: Faultline) -> None:
    steps = Flaky(app)

    @app.task(backoff=lambda _: 0)
    async def program(job: Job) -> Any:
        return await job.gather(job.do(steps.flaky), job.gather(job.do(steps.tell, "a"), job.do(steps.tell, "b")))

    assert ended(app, program.enqueue()) == ["up", ["a", "b"]]


@KINDS
@pytest.mark.parametrize("how", ["step", "patch", "race"])
def test_what_is_recorded_in_a_transaction_that_rolls_back_is_recorded_with_the_next_call(
    app: Faultline, kind: str, how: str
) -> None:
    steps = Flaky(app)

    @task_of(app, kind)
    async def program(job: Job) -> Any:
        make: Any = getattr(job, "later", job)
        answer = "up"
        if how == "step":
            try:
                answer = await job.do(steps.flaky)
            except StepFailed:
                answer = "fallback"
        with contextlib.suppress(ValueError):
            async with job.transaction():
                if how == "patch":
                    answer = "new" if await job.patched("newer") else "old"
                elif how == "race":
                    try:
                        _, answer = await job.race(make.do(steps.flaky))
                    except StepFailed:
                        answer = "fallback"
                else:
                    await job.do(steps.tell, "in the transaction")
                raise ValueError("roll back")
        await job.do(steps.tell, answer)
        await job.sleep(0.01)
        return answer

    handle = program.enqueue()

    assert ended(app, handle) == ("new" if how == "patch" else "fallback")
    assert journal(app, handle, "program_changed") == []


@KINDS
def test_a_patch_in_a_transaction_that_rolls_back_is_recorded_before_the_job_waits(app: Faultline, kind: str) -> None:
    @task_of(app, kind)
    async def program(job: Job) -> Any:
        answer = False
        with contextlib.suppress(ValueError):
            async with job.transaction():
                answer = await job.patched("newer")
                raise ValueError("roll back")
        await job.sleep(0.01)
        return answer

    assert ended(app, program.enqueue()) is True


@KINDS
@pytest.mark.parametrize("name", ["price_changed", "the program has changed", "program_changed"])
@pytest.mark.parametrize("how", ["call", "enqueue"])
def test_a_refused_child_fails_its_job_whatever_its_name(app: Faultline, kind: str, name: str, how: str) -> None:
    @app.task(name=name)
    async def child(text: str) -> str:
        return text

    @task_of(app, kind, max_attempts=1)
    async def program(job: Job) -> Any:
        large = "x" * 1_100_000
        return await job.call(child, large) if how == "call" else await job.enqueue(child, large)

    handle = program.enqueue()
    error = ended(app, handle)

    assert isinstance(error, JobFailed)
    assert "its args have" in str(error)
    assert journal(app, handle, "program_changed") == []


@KINDS
def test_a_watched_job_that_is_locked_for_long_ends_the_run_whatever_the_program_catches(
    app: Faultline, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = "faultline.flow" if kind == "async" else "faultline.flow.blocking"
    monkeypatch.setattr(f"{engine}.recording._LOCKED_TIMES", 2)
    ran: list[str] = []
    connection = psycopg.connect(app.dsn)

    @app.task
    async def other() -> int:
        return 5

    @app.step
    def fallback() -> str:
        ran.append("fallback")
        return "fallback"

    @task_of(app, kind, max_attempts=1)
    async def program(job: Job, other_id: str) -> Any:
        ran.append("run")
        if len(ran) > 1:
            connection.rollback()
        try:
            return await job.watch(other_id)
        except Exception:  # noqa: BLE001 - as careless code does
            return await job.do(fallback)

    watched = other.options(delay=0.1).enqueue()
    with connection:
        connection.execute("select from faultline.open_jobs where id = %s for update", (watched.id,))

        assert ended(app, program.enqueue(str(watched.id))) == 5
    assert ran.count("run") >= 2
    assert "fallback" not in ran


def test_the_step_of_a_blocking_race_that_lost_is_not_tried_again(app: Faultline) -> None:
    tried: list[str] = []
    decided = threading.Event()
    again = threading.Event()

    @app.step(retries=Retries(20, first=0.05, most=0.05))
    def loser() -> str:
        tried.append("tried")
        if decided.is_set():
            again.set()
        raise ValueError("down")

    @app.step
    def winner() -> str:
        return "won"

    @app.task
    def program(job: BlockingJob) -> Any:
        _, won = job.race(job.later.do(loser), job.later.do(winner))
        count = len(tried)
        decided.set()
        again.wait(1.0)
        return [won, len(tried) - count]

    result = ended(app, program.enqueue())

    assert result[0] == "won"
    assert result[1] <= 1


@KINDS
@pytest.mark.parametrize("then", ["sleep", "step"])
def test_a_failure_is_history_before_a_branch_that_the_program_came_to_after_it(
    app: Faultline, kind: str, then: str
) -> None:
    steps = Flaky(app)

    @task_of(app, kind)
    async def program(job: Job) -> Any:
        make: Any = getattr(job, "later", job)
        try:
            answer = await job.do(steps.flaky)
        except StepFailed:
            answer = "fallback"

        async def inner(what: str) -> str:
            if then == "step":
                await job.do(steps.tell, what)
            await job.sleep(0.01)
            return what

        async def outer(what: str) -> Any:
            return await job.gather(make.branch(inner, what))

        return await job.gather(make.branch(outer, answer))

    handle = program.enqueue()

    assert ended(app, handle) == [["fallback"]]
    assert calls(app, handle)["1"]["outcome"] == "failed"
    assert journal(app, handle, "program_changed") == []


def test_a_failure_beside_a_branch_is_not_history_before_the_program_went_on(app: Faultline) -> None:
    steps = Flaky(app)

    @app.task(backoff=lambda _: 0)
    async def program(job: Job) -> Any:
        async def branch() -> str:
            return await job.do(steps.tell, "beside")

        return await job.gather(job.do(steps.flaky), job.branch(branch))

    handle = program.enqueue()

    assert ended(app, handle) == ["up", "beside"]
    assert steps.ran.count("flaky") == 2


@KINDS
@pytest.mark.parametrize("how", ["unknown", "itself", "key"])
def test_a_refused_call_of_jobs_ends_the_run_whatever_the_program_catches(app: Faultline, kind: str, how: str) -> None:
    ran: list[str] = []

    @app.task(queue="elsewhere")
    async def other(n: int) -> int:
        return n

    @app.step
    def fallback() -> str:
        ran.append("fallback")
        return "fallback"

    keyed = other.options(idempotency_key="k")
    keyed.enqueue(1)

    @task_of(app, kind, max_attempts=1)
    async def program(job: Job) -> Any:
        try:
            if how == "key":
                return await job.call(keyed, 2)
            return await job.watch(job.id if how == "itself" else "00000000-0000-7000-8000-000000000007")
        except Exception:  # noqa: BLE001 - as careless code does
            return await job.do(fallback)

    handle = program.enqueue()
    error = ended(app, handle)

    assert isinstance(error, JobFailed)
    assert ran == []
    assert calls(app, handle) == {}
