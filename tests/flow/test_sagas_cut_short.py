"""Whatever cuts a run short: a saga is undone, or its job does not say that it was, and can be undone later."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import pytest

from faultline import Faultline, Job, JobState
from tests.app.kinds import KINDS, task_of
from tests.flow.running import calls, ended, job_of
from tests.flow.test_sagas import Trip
from tests.waiting import auntil
from tests.worker.working import PATIENCE

FLIGHT = ["flight", ("cancel flight", "F7", 7)]


@KINDS
def test_a_body_that_takes_too_long_in_each_attempt_is_undone(app: Faultline, kind: str) -> None:
    """The runs that undo do not come to what takes so long."""
    trip = Trip(app)
    pause: Any = asyncio.sleep if kind == "async" else time.sleep

    @task_of(app, kind, max_attempts=1, timeout=0.5)
    async def book(job: Job, n: int) -> None:
        async with job.saga() as saga:
            await saga.do(trip.flight, n, undo=trip.cancel_flight)
            await pause(1.5)

    assert "undone by: cancel_flight" in str(ended(app, book.enqueue(7)))
    assert trip.ran == FLIGHT


@KINDS
@pytest.mark.parametrize("raised", [SystemExit(2), KeyboardInterrupt(), GeneratorExit()], ids=lambda one: type(one).__name__)
def test_what_is_no_exception_undoes_the_saga_too(app: Faultline, kind: str, raised: BaseException) -> None:
    trip = Trip(app)

    @task_of(app, kind, max_attempts=1)
    async def book(job: Job, n: int) -> None:
        async with job.saga() as saga:
            await saga.do(trip.flight, n, undo=trip.cancel_flight)
            raise raised

    assert "undone by: cancel_flight" in str(ended(app, book.enqueue(7)))
    assert trip.ran == FLIGHT


def test_a_worker_that_stops_while_it_undoes_leaves_the_rest_to_the_next_one(app: Faultline) -> None:
    ran: list[str] = []

    @app.step
    def reserve() -> int:
        return 1

    @app.step
    async def release(reserved: int | None) -> None:
        ran.append("begun")
        if len(ran) <= 2:
            await asyncio.sleep(60)
        ran.append("released")

    @app.task(max_attempts=1)
    async def book(job: Job) -> None:
        async with job.saga() as saga:
            await saga.do(reserve, undo=release)
            saga.fail("no")

    handle = book.enqueue()

    async def stopped(after: int) -> None:
        async with app.worker(grace_seconds=0.1):
            await auntil(lambda: len(ran) >= after, PATIENCE)

    for after in (1, 2):
        asyncio.run(stopped(after))
        assert job_of(app, handle)["state"] == JobState.QUEUED
        assert "undone" not in (job_of(app, handle)["last_error"] or "")

    assert "undone by: release" in str(ended(app, handle))
    assert ran == ["begun", "begun", "begun", "released"]


def test_an_undo_that_takes_too_long_can_be_undone_later(app: Faultline) -> None:
    ran: list[str] = []
    seconds = [30.0]

    @app.step
    def reserve() -> int:
        return 1

    @app.step
    async def release(reserved: int | None) -> None:
        await asyncio.sleep(seconds[0])
        ran.append("released")

    @app.task(max_attempts=1, timeout=0.3)
    async def book(job: Job) -> None:
        async with job.saga() as saga:
            await saga.do(reserve, undo=release)
            saga.fail("no")

    handle = book.enqueue()
    first = str(ended(app, handle))
    seconds[0] = 0.0

    assert "undone by" not in first
    assert "0.3" in first
    assert job_of(app, handle)["state"] == JobState.FAILED
    handle.undo()
    assert "undone by: release" in str(ended(app, handle))
    assert ran == ["released"]


@KINDS
def test_a_saga_that_the_program_never_leaves_is_not_called_undone(app: Faultline, kind: str) -> None:
    trip = Trip(app)
    stacks: list[Any] = []

    @task_of(app, kind, max_attempts=1)
    async def book(job: Job, n: int) -> None:
        stack: Any = contextlib.AsyncExitStack() if kind == "async" else contextlib.ExitStack()
        stacks.append(stack)
        enter = stack.enter_async_context if kind == "async" else stack.enter_context
        saga = await enter(job.saga())
        await saga.do(trip.flight, n, undo=trip.cancel_flight)
        raise ValueError("nobody closes the stack")

    handle = book.enqueue(7)
    error = str(ended(app, handle))

    assert "call 1 is a saga that failed, and the program did not leave it" in error
    assert "undone by" not in error
    assert calls(app, handle)["1"]["outcome"] == "failed"


@KINDS
@pytest.mark.parametrize("around", ["saga", "transaction"])
def test_a_part_with_an_undo_is_refused_in_the_jobs_transaction(app: Faultline, kind: str, around: str) -> None:
    trip = Trip(app)

    @task_of(app, kind, max_attempts=1)
    async def book(job: Job, n: int) -> None:
        if around == "saga":
            async with job.saga() as saga, job.transaction():
                await saga.do(trip.flight, n, undo=trip.cancel_flight)
        else:
            async with job.transaction(), job.saga() as saga:
                await saga.do(trip.flight, n, undo=trip.cancel_flight)

    assert "call 2 (flight) has an undo and runs inside job.transaction()" in str(ended(app, book.enqueue(7)))
    assert trip.ran == []


@KINDS
def test_an_undo_gets_what_its_part_got_whatever_the_program_does_with_it_later(app: Faultline, kind: str) -> None:
    undone: list[Any] = []

    @app.step
    def reserve(items: list[str]) -> dict[str, Any]:
        return {"id": items[-1]}

    @app.step
    def release(reserved: dict[str, Any] | None, items: list[str]) -> None:
        undone.append((reserved, items))

    @task_of(app, kind, max_attempts=1)
    async def book(job: Job) -> None:
        items: list[str] = []
        async with job.saga() as saga:
            for item in "ab":
                items.append(item)
                reserved = await saga.do(reserve, items, undo=release)
                reserved["id"] = "changed"
            saga.fail("no")

    assert "undone by: release, release" in str(ended(app, book.enqueue()))
    assert undone == [({"id": "b"}, ["a", "b"]), ({"id": "a"}, ["a"])]


@pytest.mark.parametrize("verb", ["do", "call"])
def test_a_part_that_was_never_awaited_fails_the_attempt(app: Faultline, verb: str) -> None:
    trip = Trip(app)

    @app.task
    def pay(n: int) -> int:
        return n

    @app.task(max_attempts=1)
    async def book(job: Job, n: int) -> None:
        async with job.saga() as saga:
            if verb == "do":
                saga.do(trip.flight, n, undo=trip.cancel_flight)
            else:
                saga.call(pay, n, undo=trip.cancel_flight)

    assert f"call 2 ({'flight' if verb == 'do' else 'pay'}) was made and never awaited" in str(ended(app, book.enqueue(7)))
    assert trip.ran == []


def test_parts_run_beside_each_other_and_all_of_them_are_undone(app: Faultline) -> None:
    trip = Trip(app)
    trip.full = False

    @app.task(max_attempts=1)
    async def book(job: Job, n: int) -> None:
        async with job.saga() as saga:
            parts = saga.do(trip.flight, n, undo=trip.cancel_flight), saga.do(trip.hotel, n, undo=trip.cancel_hotel)
            assert list(await job.gather(*parts)) == ["F7", "H7"]
            saga.fail("no")

    assert "undone by: cancel_hotel, cancel_flight" in str(ended(app, book.enqueue(7)))
    assert sorted(map(str, trip.ran[:2])) == ["flight", "hotel"]
    assert trip.ran[2:] == [("cancel hotel", "H7", 7), ("cancel flight", "F7", 7)]
