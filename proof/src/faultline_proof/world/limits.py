"""A queue with limits in the world, a budget, unique jobs, and schedules: what some seeds play beside the rest."""

from __future__ import annotations

import asyncio
from datetime import datetime  # noqa: TC003 - looked at when a task is registered
from typing import TYPE_CHECKING, Any

import psycopg

from faultline.app.job import Job  # noqa: TC001 - likewise
from faultline.attempt.uniqueness import Unique
from faultline.core.errors import FaultlineError
from faultline.core.limits import Limit, Rate

if TYPE_CHECKING:
    import random
    from collections import Counter

    from faultline.app.application import Faultline

#: The kinds of jobs. Half of the seeds play each of the first two.
LIMITS, SCHEDULES, UNIQUE = "limits", "schedules", "unique jobs"
QUEUE = "narrow"
SLOTS = 3
_LINE, _PACED = "line", "paced"
#: The groups of jobs by their numbers. Some have none: they share the queue with the groups.
_GROUPS = (_LINE, "a", _LINE, None, _PACED, _LINE, "b", None)
#: What running jobs take from, and what those that wait in vain would wait for.
BUDGET = "provider"
_RATE, _RAISED = Rate(2, per=3, burst=4), Rate(2, per=1, burst=4)
_DOCUMENTS = 2
_RAISED_AFTER_SECONDS_MAX = 30.0
#: Long enough for those behind it in its line to be granted, if they could.
_BACKOFF_SECONDS = 2.0

#: The seconds between moments, and what becomes of those that nobody decided in time.
EVERY = {"all": 4.03, "the latest": 6.07, "one at a time": 7.09}
CATCH_UP = {"all": "all", "the latest": "latest", "one at a time": "latest"}
OVERLAP = {"the latest": "skip", "one at a time": "one"}
#: Nobody but schedules makes jobs of these.
TICKED = frozenset({"chime", "toll"})


def register(
    app: Faultline, chance: random.Random, failures: Counter[str], options: dict[str, Any], plays: frozenset[str]
) -> None:
    """`failures`: in how many attempts a job's task has failed by itself."""
    _register_unique(app, chance, failures, options)
    if LIMITS in plays:
        _register_limited(app, chance, failures, options)
        _register_takers(app, chance, failures, options)
    if SCHEDULES in plays:
        _register_schedules(app, chance, failures, options)


def _register_limited(app: Faultline, chance: random.Random, failures: Counter[str], options: dict[str, Any]) -> None:
    app.queue(
        QUEUE,
        concurrency=3,
        each_group=Limit(concurrency=2),
        groups={_LINE: Limit(ordered=True), _PACED: Limit(rate=Rate(1, per=3, burst=1))},
    )

    @app.task(queue=QUEUE, max_attempts=6, **(options | {"backoff": lambda _: _BACKOFF_SECONDS}))
    async def serve(job: Job, n: int) -> int:
        await asyncio.sleep(chance.uniform(0.5, 4))
        if chance.random() < 0.3:  # noqa: PLR2004 - some
            failures[str(job.id)] += 1
            raise RuntimeError("not this time: whoever comes after it waits")
        return n


def _register_takers(app: Faultline, chance: random.Random, failures: Counter[str], options: dict[str, Any]) -> None:
    app.budget(BUDGET, _RATE)

    @app.task(max_attempts=6, **options)
    async def consult(job: Job, n: int) -> int:
        if n % 2:
            await job.step("asked", lambda: n)  # then it waits as a flow does
        await job.take(BUDGET, cost=1 + n % 3)
        await asyncio.sleep(chance.uniform(0, 1))
        if chance.random() < 0.2:  # noqa: PLR2004 - each attempt pays
            failures[str(job.id)] += 1
            raise RuntimeError("not this time")
        return n


async def raise_budget(app: Faultline, chance: random.Random) -> None:
    """As an operator does, until it is done. Those who wait ask again."""
    await asyncio.sleep(chance.uniform(0, _RAISED_AFTER_SECONDS_MAX))
    while True:
        try:
            await app.limits.aset_budget(BUDGET, _RAISED, by="ada", reason="they wait")
        except (FaultlineError, psycopg.Error):
            await asyncio.sleep(1)
        else:
            return


def _register_unique(app: Faultline, chance: random.Random, failures: Counter[str], options: dict[str, Any]) -> None:
    @app.task(max_attempts=6, **options)
    async def refresh(job: Job, n: int) -> int:
        await asyncio.sleep(chance.uniform(0.5, 4))
        if chance.random() < 0.3:  # noqa: PLR2004 - another may wait by now, and do it in its place
            failures[str(job.id)] += 1
            raise RuntimeError("not this time")
        return n

    @app.task(max_attempts=6, **options)
    async def summarise(n: int) -> int:
        await asyncio.sleep(chance.expovariate(1))
        return n


def _register_schedules(app: Faultline, chance: random.Random, failures: Counter[str], options: dict[str, Any]) -> None:
    @app.schedule(every=EVERY["all"], name="all", catch_up="all", tick_arg="at")
    @app.schedule(every=EVERY["the latest"], name="the latest", overlap="skip", tick_arg="at")
    @app.task(max_attempts=8, **options)
    async def chime(at: datetime) -> str:
        return at.isoformat()

    @app.schedule(every=EVERY["one at a time"], name="one at a time", overlap="one", tick_arg="at")
    @app.task(max_attempts=8, **options)
    async def toll(job: Job, at: datetime) -> str:
        await asyncio.sleep(chance.uniform(0.5, 6))
        if chance.random() < 0.3:  # noqa: PLR2004 - the next one goes on waiting
            failures[str(job.id)] += 1
            raise RuntimeError("not this time")
        return at.isoformat()


def words(task: str, n: int) -> dict[str, Any]:
    """How a job with this number is submitted. Those of a group have no time and no priority: their order is judged."""
    document = n % _DOCUMENTS
    known: dict[str, dict[str, Any]] = {
        "serve": {"group": _GROUPS[n % len(_GROUPS)]},
        "refresh": {"unique": Unique(key=f"refresh:{document}")},
        "summarise": {"unique": Unique(key=f"summarise:{document}", then="replace", debounce=1.5, at_most=4)},
    }
    return known.get(task, {})
