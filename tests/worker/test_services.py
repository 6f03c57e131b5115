"""A worker beside a program of its user's goes on serving, whatever a task does to the event loop that they share."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from faultline.worker.base.background_tasks import BackgroundTasks
from tests.waiting import auntil
from tests.worker.working import PATIENCE, work

if TYPE_CHECKING:
    import pytest

    from faultline import Faultline
    from tests.driver import Driver


def test_a_task_that_cancels_everything_does_not_end_the_worker_beside_a_program(
    app: Faultline, queue: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    program: set[asyncio.Task[None]] = set()
    running = asyncio.Event()

    @app.task(max_attempts=1)
    async def beside() -> str:
        if not running.is_set():
            running.set()
            await asyncio.Event().wait()
        return "run again"

    @app.task(max_attempts=1)
    async def sweep() -> None:
        for task in asyncio.all_tasks() - program - {asyncio.current_task()}:
            task.cancel()

    @app.task(queue="other")
    async def note() -> str:
        return "served"

    async def story() -> None:
        program.add(asyncio.current_task())  # type: ignore[arg-type]
        interrupted = await beside.aenqueue()
        await running.wait()
        await (await sweep.aenqueue()).aresult(timeout=PATIENCE)
        assert await (await note.aenqueue()).aresult(timeout=PATIENCE) == "served"
        assert await interrupted.aresult(timeout=PATIENCE) == "run again"

    with caplog.at_level("INFO", "faultline"):
        work(app, story, {"default": 5, "other": 1})

    ended = {record.faultline_fields["service"] for record in caplog.records if record.message == "service_ended"}  # type: ignore[attr-defined]
    assert {"Feed.run", "Notifier.run", "Upkeep.run", "Stop._canary"} <= ended
    assert queue.value("select count(*) from faultline.open_jobs") == 0


def test_a_service_that_raises_is_started_again_and_one_that_is_done_is_not(caplog: pytest.LogCaptureFixture) -> None:
    runs: list[str] = []

    async def raises() -> None:
        runs.append("raises")
        if runs.count("raises") == 1:
            raise RuntimeError("a bug of ours")
        await asyncio.Event().wait()

    async def is_done() -> None:
        runs.append("is done")

    async def main() -> None:
        services = BackgroundTasks("w1")
        services.start(raises, is_done)
        async with asyncio.timeout(PATIENCE):
            await auntil(lambda: runs.count("raises") >= 2)
        await services.stop()
        assert services.task(raises).cancelled()

    asyncio.run(main())
    assert sorted(runs) == ["is done", "raises", "raises"]
    assert [(record.faultline_fields["reason"]) for record in caplog.records if record.message == "service_ended"] == [  # type: ignore[attr-defined]
        "RuntimeError: a bug of ours"
    ]
