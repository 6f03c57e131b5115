"""What the people of the world do: tasks that work, fail, sleep and misbehave, and a client that submits and cancels."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psycopg

from faultline.app.job import Job  # noqa: TC001 - looked at when a task is registered
from faultline.attempt.outcomes import Retry, Snooze
from faultline.core.errors import FaultlineError
from faultline.core.model import JobState
from faultline_proof.world import flows, limits
from faultline_proof.world.storm import STORM_SECONDS

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Coroutine, Sequence
    from uuid import UUID

    from faultline.app.application import Faultline

LEASE_SECONDS = 4.0
JOBS = 24
#: How often each kind of job is submitted, and those that are part of a kind of fault.
_PLAIN = {"work": 4, "pay": 4, "flaky": 2, "doomed": 1}
_ODD = {
    "one attempt": {"once": 3},
    "snoozes and retries": {"later": 1, "again": 1},
    "misbehaving tasks": {"bad": 1},
    "unknown tasks": {"rare": 1},
    "flows": dict.fromkeys(flows.TASKS, 2),
    limits.LIMITS: {"serve": 12, "consult": 5},
    limits.UNIQUE: {"refresh": 3, "summarise": 2},
}
#: They come early and together, so that there are more than may run.
_EARLY = frozenset({"serve"})
#: When they run is said by themselves, or is of no matter to others.
_TIMED = frozenset({"serve", "summarise"})
#: Their tasks fail whatever happens, each by itself.
DOOMED = frozenset({"doomed", "bad"})
WITH_EFFECT = frozenset({"pay", *flows.WITH_EFFECT})


@dataclass(slots=True)
class Told:
    """What the clients were told, and the tasks tell. `acknowledged` jobs are the ones that may not be lost."""

    acknowledged: dict[UUID, str] = field(default_factory=dict)
    cancelled: set[UUID] = field(default_factory=set)
    #: In how many attempts each job's task has failed by itself.
    failures: Counter[str] = field(default_factory=Counter)
    done: bool = False
    #: What this seed plays beside the rest.
    plays: frozenset[str] = frozenset()
    #: The applications of the workers, so that what some of them do not know can be deployed.
    apps: list[Faultline] = field(default_factory=list)


def jobs_with(faults: Sequence[str]) -> dict[str, int]:
    """The kinds of jobs that are submitted where these faults happen."""
    return _PLAIN | {name: weight for fault in faults for name, weight in _ODD.get(fault, {}).items()}


def register(app: Faultline, chance: random.Random, told: Told, *, knows_all: bool = True) -> None:
    """The tasks of every worker. They take virtual time, fail, sleep, and write effects. One is not known everywhere."""
    options: dict[str, Any] = {"lease": LEASE_SECONDS, "backoff": lambda attempt: 0.2 * attempt}

    @app.task(max_attempts=6, timeout=60, **options)
    async def work(n: int) -> int:
        await asyncio.sleep(chance.expovariate(1))
        return n

    @app.task(max_attempts=6, **options)
    async def pay(job: Job, n: int) -> None:
        await job.step("quote", lambda: n)
        await asyncio.sleep(chance.expovariate(2))
        with flows.own_locks(told.failures, job.id):
            async with job.transaction() as tx:
                await tx.execute("insert into effects (job_id, token) values (%s, %s)", (job.id, job.fencing_token))
                await asyncio.sleep(chance.expovariate(2))
                tx.complete(n)

    @app.task(max_attempts=6, **options)
    async def flaky(job: Job, n: int) -> object:
        await job.progress({"n": n})
        if _happens(chance, 0.4):
            told.failures[str(job.id)] += 1
            raise RuntimeError("not this time")
        if _happens(chance, 0.2):
            return Snooze(1.0)
        await job.fence()
        return n

    @app.task(max_attempts=2, **options)
    async def doomed(job: Job, n: int) -> None:
        told.failures[str(job.id)] += 1
        raise RuntimeError(f"{n} never works")

    _register_odd(app, chance, told, options)
    flows.register(app, chance, told.failures, options)
    limits.register(app, chance, told.failures, options, told.plays)
    if knows_all:
        deploy(app)


def deploy(app: Faultline) -> None:
    """Let this program know the task that others know already."""

    @app.task(max_attempts=2, lease=LEASE_SECONDS)
    async def rare(n: int) -> int:
        return n


def _register_odd(app: Faultline, chance: random.Random, told: Told, options: dict[str, Any]) -> None:
    @app.task(max_attempts=1, **options)
    async def once(job: Job, n: int) -> object:
        """One attempt: whatever uses it up that is not the task is found out."""
        await job.step("first", lambda: n)
        await asyncio.sleep(chance.expovariate(1))
        await job.progress({"n": n})
        return n

    @app.task(max_attempts=1, **options)
    async def later(job: Job, n: int) -> object:
        await job.step("asked", lambda: n)
        return n if _happens(chance, 0.4) else Snooze(chance.uniform(0, 2))

    @app.task(max_attempts=6, **options)
    async def again(job: Job, n: int) -> object:
        if _happens(chance, 0.5):
            told.failures[str(job.id)] += 1
            return Retry(after=chance.uniform(0, 1), error="asked for it")
        return n

    @app.task(max_attempts=2, **options)
    async def bad(job: Job, n: int) -> object:
        told.failures[str(job.id)] += 1
        return await _MISBEHAVIOURS[n % len(_MISBEHAVIOURS)]()


async def _cancels_itself() -> object:
    task = asyncio.current_task()
    assert task is not None  # noqa: S101
    task.cancel()
    await asyncio.sleep(0)
    return "went on"


def _returns(make: Callable[[], object]) -> Callable[[], Coroutine[Any, Any, object]]:
    async def misbehave() -> object:
        return make()

    return misbehave


_MISBEHAVIOURS: tuple[Callable[[], Coroutine[Any, Any, object]], ...] = (
    _cancels_itself,
    _returns(lambda: Snooze(-1.0)),
    _returns(lambda: Snooze(math.nan)),
    _returns(lambda: Snooze(math.inf)),
    _returns(lambda: Snooze(None)),  # type: ignore[arg-type]
    _returns(lambda: Retry(error=ValueError("no text"))),
    _returns(lambda: Retry(after=math.nan)),
    _returns(lambda: Retry(after=-5)),
    _returns(object),
    _returns(lambda: {"a": {"b": object()}}),
    _returns(lambda: "\x00"),
)


def worker(chance: random.Random, told: Told, *, knows_all: bool) -> Callable[[Faultline], Coroutine[Any, Any, None]]:
    async def life(app: Faultline) -> None:
        register(app, chance, told, knows_all=knows_all)
        told.apps.append(app)
        queues = {"default": 4} | ({limits.QUEUE: limits.SLOTS} if limits.LIMITS in told.plays else {})
        await app.worker(queues, grace_seconds=5).run()

    return life


def client(told: Told, chance: random.Random, kinds: dict[str, int]) -> Callable[[Faultline], Coroutine[Any, Any, None]]:
    """Submit until all is said; what fails is tried again, as a careful program would."""

    async def submit(app: Faultline, n: int) -> None:
        (name,) = chance.choices(list(kinds), weights=list(kinds.values()))
        await asyncio.sleep(chance.uniform(0, STORM_SECONDS * (0.3 if name in _EARLY else 0.8)))
        words = limits.words(name, n)
        if name not in _TIMED:
            words |= {"priority": chance.choice([0, 0, -5]), "delay": chance.choice([0, 0, 0, 3])}
        task = app.tasks[name].options(idempotency_key=f"order:{n}", **words)
        times = 2 if _happens(chance, 0.3) else 1  # a second submission must make no difference
        while times:
            try:
                handle = await task.aenqueue(n)
            except (FaultlineError, psycopg.Error):
                await asyncio.sleep(1)
                continue
            told.acknowledged[handle.id] = name
            times -= 1
            if not times and name == flows.SIGNALLED:
                await flows.send_signals(app, handle.id, chance)
            if not times and _happens(chance, 0.15):
                await asyncio.sleep(chance.uniform(0, 10))
                await cancel(app, handle.id)

    async def cancel(app: Faultline, job_id: UUID) -> None:
        try:
            await app.acancel(job_id)
        except (FaultlineError, psycopg.Error):
            return  # it has ended already, or nobody knows
        told.cancelled.add(job_id)

    async def life(app: Faultline) -> None:
        register(app, chance, told)
        raising = [limits.raise_budget(app, chance)] if limits.LIMITS in told.plays and _happens(chance, 0.5) else []
        await asyncio.gather(*(submit(app, n) for n in range(JOBS)), *raising)
        told.done = True

    return life


def _happens(chance: random.Random, share: float) -> bool:
    return chance.random() < share


ENDED = tuple(state.value for state in JobState if state.ended)
