"""The tasks that the curves of `growth` run in real worker processes. The database is named by FAULTLINE_DSN."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

from faultline.app.application import Faultline
from faultline.app.job import Job  # noqa: TC001 - looked at when the task is registered

APPLICATION = "faultline_proof.bench.tasks:app"

app = Faultline()


@app.task
async def nothing(**_: Any) -> None:
    """What a queue costs by itself."""


@app.task
async def wait(seconds: float) -> None:
    """A job that waits for somebody else, as most do."""
    await asyncio.sleep(seconds)


@app.task(backoff=lambda _: 0.0)
async def fails_once(job: Job, **_: Any) -> None:
    """It succeeds in its second attempt, which is due at once."""
    if job.attempt == 1:
        raise RuntimeError("the first attempt fails")


def burn() -> None:
    """About five milliseconds of computing that keeps the interpreter's lock."""
    digest = b""
    for _ in range(10_000):
        digest = hashlib.sha256(digest).digest()


@app.task(executor="process")
def compute() -> None:
    burn()


@app.task
async def compute_on_the_loop() -> None:
    burn()
