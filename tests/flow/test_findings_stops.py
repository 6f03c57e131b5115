"""A program that stops its own calls: that is not recorded, so it makes no further ones."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from faultline import Faultline, Job, JobFailed
from tests.flow.running import calls, ended, job_of, journal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


async def _by_timeout(asked: Awaitable[Any]) -> None:
    async with asyncio.timeout(0.05):
        await asked


async def _by_task_group(asked: Awaitable[Any]) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.wait_for(asyncio.Event().wait(), 0.05))
        await asked


async def _by_cancelling(asked: Awaitable[Any]) -> None:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().call_later(0.05, task.cancel)
    await asked


STOPS = {"timeout": _by_timeout, "task group": _by_task_group, "cancels itself": _by_cancelling}


@pytest.mark.parametrize("how", STOPS)
@pytest.mark.parametrize("what", ["step", "gather", "atomic", "saga"])
def test_a_program_that_stops_a_call_by_itself_makes_no_further_ones(app: Faultline, how: str, what: str) -> None:
    ran: list[str] = []

    @app.step
    async def model() -> str:
        ran.append("model")
        await asyncio.Event().wait()
        return "answer"

    async def compute(_: Any) -> str:
        return await model()  # type: ignore[no-any-return]

    @app.step
    async def use(answer: str) -> str:
        ran.append(answer)
        return answer

    async def in_saga(job: Job) -> Any:
        async with job.saga() as saga:
            return await saga.do(model)

    asks: dict[str, Callable[[Job], Awaitable[Any]]] = {
        "step": lambda job: job.do(model),
        "gather": lambda job: job.gather(job.do(model), job.do(model)),
        "atomic": lambda job: job.atomic("model", compute),
        "saga": in_saga,
    }

    @app.task(max_attempts=2, backoff=lambda _: 0)
    async def program(job: Job) -> str:
        try:
            await STOPS[how](asks[what](job))
        except BaseException:  # noqa: BLE001 - as careless code does
            ran.append("caught")
        return await job.do(use, "fallback")

    handle = program.enqueue()
    error = ended(app, handle)

    assert isinstance(error, JobFailed)
    if how != "cancels itself":
        assert "was stopped by the program itself" in str(error)
        assert "@app.step(timeout=" in str(error)
    assert "fallback" not in ran
    assert ran.count("caught") == 2
    assert journal(app, handle, "program_changed") == []


def test_a_branch_that_stops_a_call_by_itself_makes_no_further_ones(app: Faultline) -> None:
    ran: list[str] = []

    @app.step
    async def model() -> str:
        await asyncio.Event().wait()
        return "answer"

    @app.step
    async def use(answer: str) -> str:
        ran.append(answer)
        return answer

    @app.task(max_attempts=1)
    async def program(job: Job) -> Any:
        async def branch() -> str:
            made_before = job.do(use, "fallback")
            try:
                async with asyncio.timeout(0.05):
                    return await job.do(model)
            except TimeoutError:
                return await made_before

        return await job.gather(job.branch(branch), job.do(use, "beside"))

    error = ended(app, program.enqueue())

    assert "was stopped by the program itself" in str(error)
    assert ran == ["beside"]


def test_what_a_stopped_worker_interrupts_is_not_followed_by_other_calls(app: Faultline) -> None:
    ran: list[str] = []
    started = asyncio.Event()

    @app.step
    async def model() -> str:
        ran.append("model")
        started.set()
        if len(ran) == 1:
            await asyncio.Event().wait()
        return "answer"

    @app.step
    async def clean(what: str) -> str:
        ran.append(what)
        return what

    @app.task(max_attempts=1)
    async def program(job: Job) -> Any:
        answer = "none"
        try:
            answer = await job.do(model)
        finally:
            await job.do(clean, answer)
        return answer

    async def interrupted() -> None:
        async with app.worker({"default": 2}, grace_seconds=0):
            await asyncio.wait_for(started.wait(), 30)

    handle = program.enqueue()
    asyncio.run(interrupted())

    assert calls(app, handle) == {}
    assert ended(app, handle) == "answer"
    assert ran == ["model", "model", "answer"]
    assert job_of(app, handle)["attempt"] == 1


def test_a_call_may_be_stopped_if_nothing_follows_it(app: Faultline) -> None:
    @app.step
    async def model() -> str:
        await asyncio.Event().wait()
        return "answer"

    @app.task
    async def program(job: Job) -> str:
        try:
            async with asyncio.timeout(0.05):
                return await job.do(model)
        except TimeoutError:
            return "none"

    assert ended(app, program.enqueue()) == "none"
