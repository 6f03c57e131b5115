"""What happens in the world: clients submit, cancel and retry, workers work, and for a while nothing is reliable."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from faultline.core.errors import FaultlineError
from faultline.core.model import JobState
from faultline.runtime.job import Job  # noqa: TC001 - looked at when a task is registered
from faultline.runtime.outcome import Snooze

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Coroutine
    from uuid import UUID

    from faultline.proof.world.hosts import SimulatedHost
    from faultline.proof.world.wire import Server
    from faultline.runtime.client import Faultline

LEASE_SECONDS = 4.0
STORM_SECONDS = 28.0
#: From one fault to the next.
FAULT_SECONDS = 1.9
JOBS = 24


@dataclass(slots=True)
class Told:
    """What the clients were told. `acknowledged` jobs are the ones that may not be lost."""

    acknowledged: dict[UUID, str] = field(default_factory=dict)
    cancelled: set[UUID] = field(default_factory=set)
    done: bool = False


def register(app: Faultline, chance: random.Random) -> None:
    """The tasks of every worker. They take virtual time, fail, sleep, and write effects."""

    @app.task(lease=LEASE_SECONDS, max_attempts=6, timeout=60, backoff=lambda attempt: 0.2 * attempt)
    async def work(n: int) -> int:
        await asyncio.sleep(chance.expovariate(1))
        return n

    @app.task(lease=LEASE_SECONDS, max_attempts=6, backoff=lambda attempt: 0.2 * attempt)
    async def pay(job: Job, n: int) -> None:
        await job.step("quote", lambda: n)
        await asyncio.sleep(chance.expovariate(2))
        async with job.transaction() as tx:
            await tx.execute("insert into effects (job_id, token) values (%s, %s)", (job.id, job.fencing_token))
            await asyncio.sleep(chance.expovariate(2))
            tx.complete(n)

    @app.task(lease=LEASE_SECONDS, max_attempts=6, backoff=lambda attempt: 0.2 * attempt)
    async def flaky(job: Job, n: int) -> object:
        await job.progress({"n": n})
        if _happens(chance, 0.4):
            raise RuntimeError("not this time")
        if _happens(chance, 0.2):
            return Snooze(1.0)
        await job.fence()
        return n

    @app.task(lease=LEASE_SECONDS, max_attempts=2, backoff=lambda _: 0.1)
    async def doomed(n: int) -> None:
        raise RuntimeError(f"{n} never works")


def worker(chance: random.Random) -> Callable[[Faultline], Coroutine[Any, Any, None]]:
    async def life(app: Faultline) -> None:
        register(app, chance)
        await app.worker({"default": 4}, grace_seconds=5).run()

    return life


def client(told: Told, chance: random.Random) -> Callable[[Faultline], Coroutine[Any, Any, None]]:
    """Submit until all is said; what fails is tried again, as a careful program would."""

    async def submit(app: Faultline, n: int) -> None:
        await asyncio.sleep(chance.uniform(0, STORM_SECONDS * 0.8))
        name = chance.choice(["work", "work", "pay", "pay", "flaky", "doomed"])
        words: dict[str, Any] = {"priority": chance.choice([0, 0, -5]), "delay": chance.choice([0, 0, 0, 3])}
        task = app.tasks[name].options(idempotency_key=f"order:{n}", **words)
        times = 2 if _happens(chance, 0.3) else 1  # a second submission must make no difference
        while times:
            try:
                handle = await task.aenqueue(n)
            except FaultlineError:
                await asyncio.sleep(1)
                continue
            told.acknowledged[handle.id] = name
            times -= 1
            if not times and _happens(chance, 0.15):
                await asyncio.sleep(chance.uniform(0, 10))
                await cancel(app, handle.id)

    async def cancel(app: Faultline, job_id: UUID) -> None:
        try:
            await app.acancel(job_id)
        except FaultlineError:
            return  # it has ended already, or nobody knows
        told.cancelled.add(job_id)

    async def life(app: Faultline) -> None:
        register(app, chance)
        await asyncio.gather(*(submit(app, n) for n in range(JOBS)))
        told.done = True

    return life


async def storm(hosts: list[SimulatedHost], server: Server, chance: random.Random, counts: dict[str, int]) -> None:
    """Faults at random, for a while. Whatever is broken at the end is repaired."""
    loop = asyncio.get_running_loop()
    running: set[asyncio.Task[None]] = set()
    while loop.time() < STORM_SECONDS:
        await asyncio.sleep(chance.expovariate(1 / FAULT_SECONDS))
        kind = chance.choice(["crash", "crash", "freeze", "freeze", "cut off", "slow", "restart"])
        able = [host for host in hosts if host.up]
        if kind != "restart" and not able:
            continue
        host = chance.choice(able) if able else hosts[0]
        seconds = chance.uniform(0.5, 10)
        match kind:
            case "crash":
                fault = host.crash(seconds, chance.choice([0.0, 0.0, chance.uniform(0, 10)]))
            case "freeze":
                fault = host.freeze(seconds)
            case "cut off":
                fault = host.cut_off(seconds)
            case "slow":
                fault = host.slow_down(seconds)
            case _:
                fault = restart(server, min(seconds, 3))
        counts[kind] = counts.get(kind, 0) + 1
        task = asyncio.create_task(fault)
        running.add(task)
    await asyncio.gather(*running)


async def restart(server: Server, seconds: float) -> None:
    server.restart()
    await asyncio.sleep(seconds)
    server.up = True


def _happens(chance: random.Random, share: float) -> bool:
    return chance.random() < share


ENDED = tuple(state.value for state in JobState if state.ended)
