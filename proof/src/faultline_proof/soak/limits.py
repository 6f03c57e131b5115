"""A limited queue in a soak: few permits, groups with limits of their own, one in strict order, one at a rate; and a budget.

The history checker sees every grant. Beside it somebody looks all the time at what runs: `Looks` remembers each look that
saw more than may run.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from faultline.app.blocking_job import BlockingJob  # noqa: TC001 - looked at when the task is registered
from faultline.app.job import Job  # noqa: TC001 - likewise
from faultline.core.limits import Limit, Rate
from faultline_proof.reads import audit

if TYPE_CHECKING:
    from collections import Counter

    from faultline.app.application import Faultline
    from faultline.store.database import Database

QUEUE = "limited"
#: What may run at once: of the queue, and of each of its groups.
QUEUE_MAX, GROUP_MAX = 8, 3
#: One after the other, in the order in which they were enqueued, whatever becomes of them.
STRICT = "strict"
#: Some a second.
PACED = "paced"
_PACED_RATE = Rate(4, per=1, burst=2)
#: Each with its share of the jobs.
GROUPS = {STRICT: 1.0, PACED: 1.0, "large": 4.0, "a": 1.0, "b": 1.0, "c": 1.0}
_MOST = {STRICT: 1}
#: How often each is submitted, among the others, and how long it takes.
SHARES = {"serve": 2.0, "serve_in_thread": 1.0}
SECONDS = (0.01, 0.02, 0.05, 0.2)
#: What running jobs take from, and how often jobs that do are submitted. After a fault they wait for each other.
BUDGET, _BUDGET_RATE = "provider", Rate(40, per=1, burst=10)
TAKERS = {"consult": 1.0, "consult_in_thread": 0.5}
_COSTS = 3
#: A worker's slots for it. Together they are more than may run.
SLOTS = 6
_STUMBLES = 10


def register(app: Faultline, options: dict[str, Any]) -> None:
    _register_takers(app, options)
    queue = app.queue(
        QUEUE,
        concurrency=QUEUE_MAX,
        each_group=Limit(concurrency=GROUP_MAX),
        groups={STRICT: Limit(ordered=True), PACED: Limit(rate=_PACED_RATE)},
    )

    @app.task(queue=queue, group="{tenant}", **options)
    async def serve(job: Job, n: int, tenant: str, seconds: float) -> int:  # noqa: ARG001 - the group's
        await asyncio.sleep(seconds)
        if n % _STUMBLES == 0 and job.attempt == 1:
            raise RuntimeError("stumbles the first time: in a strict group all others wait for it")
        return n

    @app.task(queue=queue, group="{tenant}", **options)
    def serve_in_thread(n: int, tenant: str, seconds: float) -> int:  # noqa: ARG001 - likewise
        time.sleep(seconds)
        return n


def _register_takers(app: Faultline, options: dict[str, Any]) -> None:
    app.budget(BUDGET, _BUDGET_RATE)

    @app.task(**options)
    async def consult(job: Job, n: int) -> int:
        if n % 2:
            await job.step("asked", lambda: n)  # then it waits as a flow does
        await job.take(BUDGET, cost=1 + n % _COSTS)
        return n

    @app.task(**options)
    def consult_in_thread(job: BlockingJob, n: int) -> int:
        job.take(BUDGET, cost=1 + n % _COSTS)
        return n


#: They fail once by themselves.
STUMBLING = frozenset({"serve"})


@dataclass(slots=True)
class Looks:
    """What was seen to run."""

    number: int = 0
    #: The most that ran at once.
    most: int = 0
    exceeded: list[str] = field(default_factory=list)

    def look(self, database: Database) -> None:
        self.judge(database.run(audit.running_in(QUEUE)))

    def judge(self, running: Counter[str]) -> None:
        """`running`: how many of each group, at one moment."""
        total = running.total()
        self.number += 1
        self.most = max(self.most, total)
        if total > QUEUE_MAX:
            self.exceeded.append(f"{total} of the queue")
        self.exceeded += [f"{run} of {group}" for group, run in running.items() if run > _MOST.get(group, GROUP_MAX)]
