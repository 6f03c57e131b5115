"""Flows in the world: programs that sleep, have children, wait for signals and write effects, and who sends the signals."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg

from faultline.app.job import Job  # noqa: TC001 - looked at when a task is registered
from faultline.attempt.async_transaction import Transaction  # noqa: TC001 - likewise
from faultline.core.errors import FaultlineError, IllegalTransition, JobNotFound

if TYPE_CHECKING:
    import random
    from collections import Counter
    from collections.abc import Iterator
    from uuid import UUID

    from faultline.app.application import Faultline

#: Tasks that are submitted. Their children are not.
TASKS = ("travel", "negotiate")
CHILDREN = ("part", "stop")
WITH_EFFECT = frozenset({"travel"})
SIGNALLED = "negotiate"
#: What is written by an atomic step: once per job, whatever happens.
MARKS = "create table marks (job_id uuid, name text)"
_PARTS = 3
_SIGNALS = 3


@contextmanager
def own_locks(failures: Counter[str], job_id: UUID) -> Iterator[None]:
    """A lock that a task's own statement does not get, sooner than our limit: in its transaction the task may have set a
    shorter one, so that counts against it.
    """
    try:
        yield
    except psycopg.errors.LockNotAvailable:
        failures[str(job_id)] += 1
        raise


def register(app: Faultline, chance: random.Random, failures: Counter[str], options: dict[str, Any]) -> None:
    @app.task(max_attempts=8, **options)
    async def part(of: int) -> int:
        await asyncio.sleep(chance.expovariate(2))
        return of

    @app.task(max_attempts=8, **options)
    async def stop(job: Job, of: int) -> list[int]:
        """A child with children of its own."""
        await job.sleep(0.2)
        return await job.map(part, [of, of + 1])

    @app.step(retries=3)
    async def quote(of: int) -> int:
        await asyncio.sleep(chance.expovariate(5))
        return of

    async def mark(tx: Transaction, job_id: UUID) -> str:
        with own_locks(failures, job_id):
            await tx.execute("insert into marks (job_id, name) values (%s, 'mark')", (job_id,))
        return "marked"

    @app.task(max_attempts=8, **options)
    async def travel(job: Job, n: int) -> None:
        await job.atomic("mark", mark, job.id)
        await job.sleep(0.3 * (n % 5))
        parts = await job.map(part, [n * 100 + index for index in range(_PARTS)])
        price, stops = await job.gather(job.do(quote, n), job.call(stop, n))
        with own_locks(failures, job.id):
            async with job.transaction() as tx:
                await tx.execute("insert into effects (job_id, token) values (%s, %s)", (job.id, job.fencing_token))
                tx.complete([*parts, price, *stops])

    @app.task(max_attempts=8, **options)
    async def negotiate(job: Job, n: int) -> list[int]:
        """Signals in order, one with a time limit that may be over before it comes."""
        offers = [await job.receive("offer", int) for _ in range(_SIGNALS)]
        first = await job.receive("never sent", int, timeout=1.0 + n % 4, default=-1)
        return [*offers, first]


def expected(task: str, n: int) -> Any:
    """The result of a flow that has succeeded."""
    if task == "travel":
        return [*(n * 100 + index for index in range(_PARTS)), n, n, n + 1]
    return [*range(_SIGNALS), -1]


async def send_signals(app: Faultline, job_id: UUID, chance: random.Random) -> None:
    """In order, each until it is acknowledged: its key makes it safe to send it again."""
    for number in range(_SIGNALS):
        while True:
            await asyncio.sleep(chance.uniform(0, 2))
            try:
                await app.asignal(job_id, "offer", number, key=f"offer:{number}")
            except (IllegalTransition, JobNotFound):
                return  # it has ended
            except (FaultlineError, psycopg.Error):
                continue
            break
