"""Steps of a program run once, with tries of their own, and every run reads the same results and errors."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psycopg
import pytest
from pydantic import BaseModel

from faultline import ConfigError, Faultline, Job, JobFailed, Retries, StepFailed
from tests.app.kinds import KINDS, task_of
from tests.flow.running import calls, ended, job_of

if TYPE_CHECKING:
    from faultline import Transaction


class Colour(Enum):
    RED = "red"


@dataclass
class Part:
    id: UUID
    made_at: datetime
    colour: Colour = Colour.RED


@dataclass
class Whole:
    parts: list[Part]
    by_name: dict[str, Part | None] = field(default_factory=dict)


class Model(BaseModel):
    name: str
    size: int | None = None


PART = Part(UUID(int=7), datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
WHOLE = Whole([PART], {"a": PART, "b": None})


@KINDS
def test_a_step_runs_once_however_often_the_program_runs(app: Faultline, kind: str) -> None:
    ran: list[str] = []

    @app.step
    def draft(topic: str) -> str:
        ran.append(topic)
        return f"about {topic}"

    @task_of(app, kind)
    async def article(job: Job, topic: str) -> str:
        text = await job.do(draft, topic)
        await job.sleep(0.01)
        again = await job.do(draft, text)
        await job.sleep(0.01)
        return again

    assert ended(app, article.enqueue("rain")) == "about about rain"
    assert ran == ["rain", "about rain"]


@KINDS
def test_a_step_has_tries_of_its_own_which_use_up_no_attempt(app: Faultline, kind: str) -> None:
    ran: list[int] = []

    @app.step(retries=Retries(3, on=ConnectionError, first=0.001))
    def fetch() -> int:
        ran.append(len(ran))
        if len(ran) < 4:
            raise ConnectionError("not yet")
        return len(ran)

    @task_of(app, kind, max_attempts=1)
    async def program(job: Job) -> int:
        return await job.do(fetch)

    assert ended(app, program.enqueue()) == 4


@KINDS
def test_only_the_named_errors_are_tried_again(app: Faultline, kind: str) -> None:
    ran: list[int] = []

    @app.step(retries=Retries(3, on=ConnectionError, first=0.001))
    def fetch() -> int:
        ran.append(1)
        raise ValueError("wrong")

    @task_of(app, kind, max_attempts=1)
    async def program(job: Job) -> int:
        return await job.do(fetch)

    error = ended(app, program.enqueue())

    assert isinstance(error, JobFailed)
    assert "StepFailed: step fetch failed: ValueError: wrong" in str(error)
    assert ran == [1]


@KINDS
def test_an_error_that_the_program_caught_is_the_same_in_every_run(app: Faultline, kind: str) -> None:
    ran: list[int] = []

    @app.step
    def flicker() -> str:
        ran.append(1)
        if len(ran) == 1:
            raise ConnectionError("down")
        return "up"

    @task_of(app, kind)
    async def program(job: Job) -> list[str]:
        try:
            first = await job.do(flicker)
        except StepFailed as error:
            first = f"{error.step} {error.kind}"
        await job.sleep(0.01)
        return [first, await job.do(flicker)]

    handle = program.enqueue()

    assert ended(app, handle) == ["flicker ConnectionError", "up"]
    assert calls(app, handle)["1"]["outcome"] == "failed"


@KINDS
def test_an_error_that_fails_the_attempt_is_not_remembered(app: Faultline, kind: str) -> None:
    ran: list[int] = []

    @app.step
    def flicker() -> str:
        ran.append(1)
        if len(ran) == 1:
            raise ConnectionError("down")
        return "up"

    @task_of(app, kind, backoff=lambda _: 0)
    async def program(job: Job) -> str:
        return await job.do(flicker)

    assert ended(app, program.enqueue()) == "up"
    assert ran == [1, 1]


def test_a_long_pause_between_tries_holds_no_lease(app: Faultline) -> None:
    ran: list[int] = []

    @app.step(retries=Retries(1, first=6.8))
    def flicker() -> str:
        ran.append(1)
        if len(ran) == 1:
            raise ConnectionError("down")
        return "up"

    @app.task(max_attempts=1)
    async def program(job: Job) -> str:
        return await job.do(flicker)

    handle = program.enqueue()

    assert ended(app, handle) == "up"
    assert calls(app, handle)["1.1"]["kind"] == "retry"
    assert job_of(app, handle)["fencing_token"] == 2


def test_a_try_that_takes_too_long_is_an_error_of_the_step(app: Faultline) -> None:
    import asyncio  # noqa: PLC0415

    @app.step(timeout=0.01)
    async def hang() -> None:
        await asyncio.Event().wait()

    @app.task
    async def program(job: Job) -> str:
        try:
            await job.do(hang)
        except StepFailed as error:
            return error.kind
        return ""

    assert ended(app, program.enqueue()) == "TimeoutError"


def test_a_plain_function_has_no_timeout(app: Faultline) -> None:
    with pytest.raises(ConfigError, match="cannot be stopped"):

        @app.step(timeout=1)
        def hang() -> None: ...


@KINDS
def test_results_are_read_by_their_annotations(app: Faultline, kind: str) -> None:
    @app.step
    def whole() -> Whole:
        return WHOLE

    @app.step
    def model() -> list[Model]:
        return [Model(name="a", size=1), Model(name="b")]

    @task_of(app, kind)
    async def program(job: Job) -> list[bool]:
        await job.sleep(0.01)
        one, many = await job.do(whole), await job.do(model)
        await job.sleep(0.01)
        return [one == WHOLE, many == [Model(name="a", size=1), Model(name="b")]]

    assert ended(app, program.enqueue()) == [True, True]


@KINDS
def test_a_result_that_cannot_be_stored_ends_the_job(app: Faultline, kind: str) -> None:
    ran: list[int] = []

    @app.step
    def bad() -> Any:
        ran.append(1)
        return object()

    @task_of(app, kind)
    async def program(job: Job) -> str:
        try:
            await job.do(bad)
        except Exception:  # noqa: BLE001 - it must not go on
            return "went on"
        return "stored"

    error = ended(app, program.enqueue())

    assert isinstance(error, JobFailed)
    assert "cannot be stored" in str(error)
    assert ran == [1]


def test_a_result_that_would_be_read_as_another_type_is_an_error_of_the_step(app: Faultline) -> None:
    @app.step
    def unannotated():  # type: ignore[no-untyped-def]  # noqa: ANN202
        return PART

    @app.task(max_attempts=1)
    async def program(job: Job) -> Any:
        return await job.do(unannotated)

    assert "annotate what it returns" in str(ended(app, program.enqueue()))


@KINDS
def test_an_atomic_call_exists_exactly_once_with_its_writes(app: Faultline, kind: str) -> None:
    with psycopg.connect(app.dsn, autocommit=True) as connection:
        connection.execute("create table account (balance int)")
        connection.execute("insert into account values (100)")
    failed: list[int] = []

    @task_of(app, kind, backoff=lambda _: 0)
    async def transfer(job: Job, amount: int) -> int:
        async def debit(tx: Transaction, n: int) -> int:
            await tx.execute("update account set balance = balance - %s", (n,))
            return n

        debited = await job.atomic("debit", debit, amount)
        await job.sleep(0.01)
        if not failed:
            failed.append(1)
            raise ConnectionError("after it")
        return debited

    assert ended(app, transfer.enqueue(10)) == 10
    with psycopg.connect(app.dsn) as connection:
        assert connection.execute("select balance from account").fetchall() == [(90,)]


@KINDS
def test_a_step_makes_no_calls(app: Faultline, kind: str) -> None:
    jobs: list[Any] = []

    @app.step
    def nested() -> None:
        jobs[0].sleep(1)

    @task_of(app, kind, max_attempts=1)
    async def program(job: Job) -> None:
        jobs.append(job)
        await job.do(nested)

    assert "step nested makes a call of the flow" in str(ended(app, program.enqueue()))
