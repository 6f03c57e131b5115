"""The conductor of agents: what it makes of a run that ends at an odd moment."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from faultline.integrations.agents.conductor import Conductor
from tests.flow.running import calls, ended

if TYPE_CHECKING:
    from faultline import Faultline, Job


def test_a_run_that_ends_while_the_model_is_asked_ends_when_the_request_is_recorded(app: Faultline) -> None:
    @app.task(timeout=10, max_attempts=1)
    async def ask(job: Job) -> str:
        begun, left = asyncio.Event(), asyncio.Event()
        conductor = Conductor(job, lambda _: ["call"])

        async def request() -> str:
            begun.set()
            await left.wait()
            return "here"

        async def run() -> None:
            asking = asyncio.create_task(conductor.step("request", request, {}, track=None, is_request=True))
            await asyncio.wait([asking, asyncio.create_task(begun.wait())], return_when="FIRST_COMPLETED")
            left.set()
            raise LookupError("over")

        try:
            await conductor.conduct(run)
        except LookupError as error:
            return str(error)
        return "nothing"

    handle = ask.enqueue()

    assert ended(app, handle) == "over"
    assert [row["result"] for row in calls(app, handle).values() if row["name"] == "request"] == ["here"]
