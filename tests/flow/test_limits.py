"""What is too much for one job of a flow is refused with an error that says what to do instead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from faultline import ContinueAsNew, Faultline, FlowTooLong, Job, LimitReached
from faultline.core import bounds
from tests.app.kinds import KINDS, task_of
from tests.flow.running import calls, ended

if TYPE_CHECKING:
    from tests.driver import Driver


@KINDS
def test_more_children_than_the_limit_are_refused_and_none_is_enqueued(
    app: Faultline, queue: Driver, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bounds.CHILDREN_MAX == 100_000
    monkeypatch.setattr(bounds, "CHILDREN_MAX", 10)

    @app.task
    async def child(n: int) -> int:
        return n

    @task_of(app, kind, max_attempts=1)
    async def program(job: Job) -> Any:
        return await job.map(child, range(11))

    error = str(ended(app, program.enqueue()))

    assert f"{LimitReached.__name__}: " in error
    assert "more than 10 items, the limit of one call. Nothing was enqueued" in error
    assert queue.value("select count(*) from faultline.jobs") == 1


@KINDS
def test_a_program_with_too_many_calls_fails_at_once_and_may_start_over(
    app: Faultline, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bounds.CALLS_MAX == 10_000
    monkeypatch.setattr(bounds, "CALLS_MAX", 5)
    runs: list[int] = []

    @app.step
    def count(n: int) -> int:
        return n

    @task_of(app, kind, backoff=lambda _: 0)
    async def endless(job: Job) -> None:
        runs.append(1)
        for n in range(6):
            await job.do(count, n)

    handle = endless.enqueue()
    error = str(ended(app, handle))

    assert FlowTooLong.__name__ in error
    assert "has recorded more than 5 calls" in error
    assert "return ContinueAsNew(...)" in error
    assert len(runs) == 1
    assert len(calls(app, handle)) == 5


@pytest.mark.parametrize("runs", ["one run", "many runs"])
@KINDS
def test_a_program_with_too_large_a_history_fails_at_once(
    app: Faultline, kind: str, runs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bounds.HISTORY_BYTES_MAX == 64 * 1024**2
    monkeypatch.setattr(bounds, "HISTORY_BYTES_MAX", 3 * 1024**2)
    ran: list[int] = []

    @app.step
    def large(n: int) -> str:
        ran.append(n)
        return "x" * 900_000

    @task_of(app, kind, backoff=lambda _: 0)
    async def program(job: Job) -> None:
        for n in range(10):
            await job.do(large, n)
            if runs == "many runs":
                await job.sleep(0.001)

    error = str(ended(app, program.enqueue()))

    assert FlowTooLong.__name__ in error
    assert "more than 3 MiB of results" in error
    assert ran == [0, 1, 2, 3]


def test_a_program_that_catches_it_may_start_over(app: Faultline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "CALLS_MAX", 5)

    @app.step
    def count(n: int) -> int:
        return n

    @app.task
    async def agent(job: Job, first: int) -> int | ContinueAsNew:
        n = first
        while n < 12:
            try:
                n = 1 + await job.do(count, n)
            except FlowTooLong:
                return ContinueAsNew(n)
        return n

    assert ended(app, agent.enqueue(0)) == 12


@KINDS
def test_what_is_too_long_is_undone_however_many_calls_that_takes(
    app: Faultline, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "CALLS_MAX", 10)
    ran: list[str] = []

    @app.step
    def book(n: int) -> int:
        ran.append(f"book {n}")
        return n

    @app.step
    def cancel(_: int | None, n: int) -> None:
        ran.append(f"cancel {n}")

    @task_of(app, kind, max_attempts=1)
    async def program(job: Job) -> None:
        async with job.saga() as saga:
            for n in range(11):
                await saga.do(book, n, undo=cancel)

    error = str(ended(app, program.enqueue()))

    assert "more than 10 calls" in error
    assert ran == [f"book {n}" for n in range(len(ran) // 2)] + [f"cancel {n}" for n in reversed(range(len(ran) // 2))]
    assert len(ran) == 18


@KINDS
def test_a_history_that_is_too_large_is_undone_once(app: Faultline, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "HISTORY_BYTES_MAX", 3 * 1024**2)
    ran: list[str] = []

    @app.step
    def large(n: int) -> str:
        ran.append(f"large {n}")
        return "x" * 900_000

    @app.step
    def remove(_: str | None, n: int) -> str:
        ran.append(f"remove {n}")
        return "x" * 900_000

    @task_of(app, kind, max_attempts=1)
    async def program(job: Job) -> None:
        async with job.saga() as saga:
            for n in range(9):
                await saga.do(large, n, undo=remove)

    error = str(ended(app, program.enqueue()))

    assert "more than 3 MiB of results" in error
    assert ran == ["large 0", "large 1", "large 2", "large 3", "remove 3", "remove 2", "remove 1", "remove 0"]
