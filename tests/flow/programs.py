"""Flows for worker processes in tests. Each leaves one row per effect; `CRASH_AT` names the fault point that kills it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from faultline import BlockingJob, Faultline, Job
from faultline.core.host import Host
from faultline.testing import CrashAt

if TYPE_CHECKING:
    from faultline.attempt.async_transaction import Transaction
    from faultline.attempt.blocking_transaction import BlockingTransaction

POINT = os.environ.get("CRASH_AT")
app = Faultline(host=Host(faults=CrashAt(POINT)) if POINT else Host())

EFFECTS = "create table effects (flow text, what text)"
CHILDREN = 3


async def note(tx: Transaction, flow: str, what: str) -> str:
    await tx.execute("insert into effects values (%s, %s)", (flow, what))
    return what


def blocking_note(tx: BlockingTransaction, flow: str, what: str) -> str:
    tx.execute("insert into effects values (%s, %s)", (flow, what))
    return what


@app.step
async def add(a: int, b: int) -> int:
    return a + b


@app.task(lease=3, max_attempts=5, backoff=lambda _: 0)
async def part(job: Job, item: tuple[str, int]) -> int:
    flow, n = item
    await job.atomic("note", note, flow, f"part {n}")
    return n


@app.task(lease=3, max_attempts=5, backoff=lambda _: 0)
async def story(job: Job, flow: str) -> int:
    """Write, sleep, call others, wait for a signal, write."""
    await job.atomic("begin", note, flow, "begin")
    await job.sleep(0.02)
    parts = await job.map(part, [(flow, n) for n in range(CHILDREN)])
    added = await job.do(add, sum(parts), 1)
    got = await job.receive("go", int)
    await job.atomic("end", note, flow, "end")
    return added + got


@app.task(lease=3, max_attempts=5, backoff=lambda _: 0)
def blocking_story(job: BlockingJob, flow: str) -> int:
    """The same, in a thread."""
    job.atomic("begin", blocking_note, flow, "begin")
    job.sleep(0.02)
    parts = job.map(part, [(flow, n) for n in range(CHILDREN)])
    got = job.receive("go", int)
    job.atomic("end", blocking_note, flow, "end")
    return sum(parts) + 1 + got


@app.task(lease=3, max_attempts=5, backoff=lambda _: 0)
async def waiting(job: Job) -> int:
    return await job.receive("go", int)
