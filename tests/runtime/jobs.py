"""Tasks for worker processes in tests. What they wait for is in the database, so that tests decide and nothing sleeps."""

from __future__ import annotations

import asyncio
import os
import signal

from faultline import Faultline, Job

app = Faultline()


@app.task
async def note(n: int) -> int:
    return n


@app.task(lease=3, backoff=lambda _: 0)
async def survive(job: Job) -> int:
    """Hang in the first epoch, return in any later one."""
    if job.fencing_token == 1:
        await asyncio.Event().wait()
    return job.fencing_token


@app.task(lease=1, max_attempts=2)
async def poison() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(lease=1, max_attempts=2)
async def innocent(n: int) -> int:
    return n


@app.task
async def endless() -> None:
    await asyncio.Event().wait()
