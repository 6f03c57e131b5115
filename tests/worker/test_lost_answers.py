"""The wire is cut once at every fault point of a worker: no job is lost, none done twice, none waits for its lease."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from faultline import Faultline, Job, Retry, Snooze
from faultline.core import faults
from faultline.core.host import Host
from tests.waiting import auntil
from tests.worker.working import work

if TYPE_CHECKING:
    from tests.driver import Driver

pytestmark = pytest.mark.long

JOBS = 30
OTHERS = {*faults.FLOW_POINTS, *faults.SCHEDULE_POINTS}
POINTS = [point for point in faults.POINTS if point.endswith(("_sent", "_committed")) and point not in OTHERS]


class CutOnce(faults.Faults):
    """Cuts the wire where it is told, the first time that place is reached."""

    wanted = True

    def __init__(self, point: str) -> None:
        self._point = point
        self.cuts = 0

    def reach(self, point: str) -> None:
        if point == self._point and not self.cuts:
            self.cuts += 1
            raise faults.WireCut(point)


@pytest.mark.parametrize("point", POINTS)
def test_a_wire_that_is_cut_anywhere_loses_and_doubles_nothing(dsn: str, queue: Driver, point: str) -> None:
    cutting = CutOnce(point)
    with Faultline(dsn, host=Host(faults=cutting)) as app:
        queue.connection.execute("create table effects (n integer)")
        starts: Counter[int] = Counter()

        @app.task(max_attempts=3, backoff=lambda _: 0)
        async def busy(job: Job, n: int) -> object:
            starts[n] += 1
            if starts[n] == 1 and n == 0:
                return Retry(after=0)  # the next attempt is not the last, so nothing is marked
            if starts[n] == 1 and n == 1:
                return Snooze(0.01)
            if n == 2 and starts[n] < 3:
                raise RuntimeError("again")  # the third attempt is the last, so its start is marked
            if n == 3:
                await asyncio.sleep(0.6)  # renewed meanwhile, at a third of its lease
            await job.step("paid", lambda: n)
            await job.progress({"n": n})
            await job.fence()
            if n % 2:
                return n
            async with job.transaction() as tx:
                await tx.execute("insert into effects values (%s)", (n,))
                tx.complete(n)
            return None

        app.enqueue_many(busy.options(lease=1 if n == 3 else 30).bind(n) for n in range(JOBS))

        async def story() -> None:
            await auntil(lambda: queue.value("select count(*) from faultline.ledger") == JOBS and cutting.cuts)

        # Well within the lease of thirty seconds: whatever was cut, the worker itself put it right.
        async def in_time() -> None:
            async with asyncio.timeout(25):
                await story()

        work(app, in_time)

    assert cutting.cuts == 1
    assert queue.value("select array_agg(n order by n) from effects") == list(range(0, JOBS, 2))
    assert queue.value("select count(distinct job_id) from faultline.ledger") == JOBS
    assert queue.broken_invariants() == []
