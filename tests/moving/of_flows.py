"""Checks: results, control and canvas."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any
from uuid import UUID

import pytest

from faultline import JobNotFound
from faultline.testing import drain
from tests.moving.page import Scene, asynchronously, checks
from tests.waiting import auntil
from tests.worker.working import work


def ended(scene: Scene, name: str, *args: Any, **words: Any) -> Any:
    """The result of a task of the program."""
    handle = scene.run(**words)[name].enqueue(*args)
    drain(scene.app)
    return handle.result(0.1)


@checks("Results", "celery", "arq", "rq", "dramatiq")
@checks("Status and results", "procrastinate")
def _(scene: Scene) -> None:
    asked = scene.run()["outcome"]

    def outcome(job_id: str) -> Any:
        return asynchronously(scene.app, asked, job_id) if inspect.iscoroutinefunction(asked) else asked(job_id)

    @scene.app.task(max_attempts=1)
    def divide(a: int, b: int) -> int:
        return a // b

    right, wrong = divide.enqueue(8, 2), divide.enqueue(8, 0)
    drain(scene.app)
    assert outcome(str(right.id)) == 4
    assert outcome(str(wrong.id)).startswith("failed: ")
    assert "ZeroDivisionError" in outcome(str(wrong.id))
    with pytest.raises(JobNotFound):
        outcome(str(UUID(int=7)))


@checks("Revoke")
@checks("Abort", "arq")
@checks("Cancel and stop", "rq")
@checks("Cancel", "dramatiq")
@checks("Cancel and abort", "procrastinate")
def _(scene: Scene) -> None:
    stop = scene.run()["stop"]
    seen: list[str] = []

    @scene.app.task
    async def wait() -> None:
        seen.append("started")
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    @scene.app.task(queue="elsewhere")
    async def never() -> None:
        seen.append("never")

    running, queued = wait.enqueue(), never.enqueue()

    async def story() -> None:
        await auntil(lambda: seen)
        for handle in (running, queued):
            answer = await asyncio.to_thread(stop, str(handle.id))
            if inspect.isawaitable(answer):
                await answer
        await auntil(lambda: seen == ["started", "cancelled"])

    work(scene.app, story)
    drain(scene.app)
    assert [handle.job().state for handle in (running, queued)] == ["cancelled", "cancelled"]
    assert seen == ["started", "cancelled"]
    assert "the customer has called" in str(running.job().last_error)


@checks("Inspect and Flower")
def _(scene: Scene) -> None:
    overview = scene.run()["overview"]

    @scene.app.task(queue="mail", max_attempts=1)
    def send() -> dict[str, int]:
        if not scene.app.jobs(state="failed"):
            raise ValueError
        seen: dict[str, int] = overview()
        return seen

    send.enqueue()
    drain(scene.app)
    handle = send.enqueue()
    send.options(delay=60).enqueue()
    drain(scene.app)
    assert handle.result(0.1) == {"queued": 1, "running": 1, "failed": 1}


@checks("Chain")
@checks("Jobs after jobs", "arq")
@checks("Pipelines", "dramatiq")
def _(scene: Scene) -> None:
    assert ended(scene, "thumbnail", 7) == "small image 7"
    assert len(scene.app.jobs(state="succeeded")) == 3


@checks("Group")
def _(scene: Scene) -> None:
    assert ended(scene, "album", [1, 2, 3]) == (["image 1", "image 2", "image 3"], "image 4", 500)


@checks("Chord")
def _(scene: Scene) -> None:
    assert ended(scene, "words", ["a b", "c", "d e f"]) == 6

    for name in ("count", "total", "words"):
        del scene.app.tasks[name]
    graph = scene.run(1)
    drain(scene.app)
    assert graph["handle"].result(0.1)["total"] == 3


@checks("Groups", "dramatiq")
def _(scene: Scene) -> None:
    assert ended(scene, "words", ["a b", "c", "d e f"]) == 6


@checks("Dependencies", "rq")
def _(scene: Scene) -> None:
    graph = scene.run()
    drain(scene.app)
    assert graph["handle"].result(0.1)["total"] == 3


@checks("Map, starmap and chunks")
def _(scene: Scene) -> None:
    numbers = list(range(250))

    assert ended(scene, "resize_in_chunks", numbers) == [
        [n // 2 for n in part] for part in (numbers[:100], numbers[100:200], numbers[200:])
    ]
    assert len(scene.app.jobs(task="resize_all")) == 3


@checks("Callbacks")
def _(scene: Scene) -> None:
    class Bank:
        def charge(self, order_id: int) -> None:
            if order_id == 13:
                raise ValueError("no money")

    page = scene.run(bank=Bank())
    right, wrong = page["order"].enqueue(42), page["order"].enqueue(13)
    drain(scene.app)

    assert right.result(0.1) == "order 42 is on its way"
    assert wrong.result(0.1) == "order 13 could not be charged"
