"""The tasks that drills and figures run in real worker processes. The database is named by FAULTLINE_DSN."""

from __future__ import annotations

import asyncio
import time

from faultline.runtime.client import Faultline

app = Faultline()


@app.task
async def nothing() -> None:
    """What a queue costs by itself."""


@app.task
async def wait(seconds: float) -> None:
    """A job that waits for somebody else, as most do."""
    await asyncio.sleep(seconds)


@app.task
async def stamp() -> float:
    """Say when it was started."""
    return time.time()
