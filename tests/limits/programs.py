"""Tasks for worker processes on queues with limits. FAULTLINE_TEST_LIMIT is the limit that this build declares."""

from __future__ import annotations

import asyncio
import os

from faultline import Faultline, Job, Limit

app = Faultline()
app.queue(
    "mail",
    concurrency=int(os.environ.get("FAULTLINE_TEST_LIMIT", "1")),
    each_group=Limit(concurrency=1),
    match=("mail.*",),
)


@app.task(name="mail.hang", lease=2, group="{tenant}")
async def hang(job: Job, tenant: str) -> int:
    """Hang in the first epoch, return in any later one."""
    if job.fencing_token == 1:
        await asyncio.Event().wait()
    return job.fencing_token


@app.task(name="mail.note")
async def note(n: int) -> int:
    return n
