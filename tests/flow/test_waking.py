"""Those who wait go on when what they wait for has happened: soon, behind a pooler, after a day without workers."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from faultline import Faultline, Job, ResultTimeout
from faultline.core.faults import Faults, WireCut
from faultline.core.host import Host
from faultline.store import verbs
from tests.waiting import auntil
from tests.worker.test_pooler import pooled_dsn  # noqa: F401 - a fixture
from tests.worker.working import results, work

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.driver import Clock, Driver

DAY = 86_400.0


def suspended(queue: Driver) -> int:
    return int(queue.value("select count(*) from faultline.open_jobs where suspended"))


def test_a_signal_soon_has_the_program_running_again(
    app: Faultline, queue: Driver, record_property: Callable[[str, object], None]
) -> None:
    went_on: list[float] = []

    @app.task
    async def waits(job: Job) -> None:
        for _ in range(10):
            await job.receive("go", int)
            went_on.append(time.monotonic())

    handle = waits.enqueue()

    async def story() -> list[float]:
        took = []
        for _ in range(10):
            await auntil(lambda: suspended(queue) == 1)
            went_on.clear()
            sent = time.monotonic()
            queue.run(verbs.signal(handle.id, "go", 1))
            await auntil(lambda: went_on)
            # A run goes through all that it has received before.
            took.append(went_on[0] - sent)
        return took

    took = work(app, story)

    middle = statistics.median(took)
    record_property("figure", f"from a signal to the program that goes on: {middle * 1000:.0f} ms, beside all other tests")
    assert middle < 1.0


def test_a_flow_outlives_a_day_without_workers(app: Faultline, queue: Driver, clock: Clock) -> None:
    clock.take()

    @app.task
    async def sleeps(job: Job) -> str:
        await job.sleep(DAY)
        return "awake"

    @app.task
    async def asks(job: Job) -> int:
        return await job.receive("go", int, timeout=10 * DAY)

    @app.task
    async def gives_up(job: Job) -> int:
        return await job.receive("go", int, timeout=DAY / 2, default=-1)

    handles: list[Any] = [sleeps.enqueue(), asks.enqueue(), gives_up.enqueue()]
    work(app, lambda: auntil(lambda: suspended(queue) == 3))

    queue.run(verbs.signal(handles[1].id, "go", 5))
    clock.advance(DAY + 1)

    assert results(app, handles) == ["awake", 5, -1]


def test_a_wait_for_a_child_lasts_as_long_as_the_child_and_one_for_a_signal_thirty_days(
    app: Faultline, queue: Driver, clock: Clock
) -> None:
    clock.take()

    @app.task
    async def child(job: Job) -> str:
        await job.sleep(60 * DAY)
        return "done"

    @app.task
    async def calls(job: Job) -> str:
        return await job.call(child)

    @app.task
    async def asks(job: Job) -> int:
        return await job.receive("go", int)

    handles: list[Any] = [calls.enqueue(), asks.enqueue()]
    work(app, lambda: auntil(lambda: suspended(queue) == 3))
    clock.advance(30 * DAY - 60)
    with pytest.raises(ResultTimeout):
        handles[1].result(0)
    clock.advance(61)
    [timed_out] = results(app, handles[1:])

    assert "no signal go came within its time" in str(timed_out)
    assert suspended(queue) == 2
    clock.advance(30 * DAY)
    assert results(app, handles[:1]) == ["done"]


def test_a_sleep_that_races_a_child_ends_the_wait_and_the_child(app: Faultline, queue: Driver) -> None:
    @app.task(queue="nobody")
    async def child() -> None: ...

    @app.task
    async def program(job: Job) -> None:
        await job.race(job.call(child), job.sleep(0.1))

    assert results(app, [program.enqueue()]) == [None]
    work(app, lambda: auntil(lambda: queue.value("select state from faultline.jobs where task = 'child'") == "cancelled"))


def test_flows_go_on_behind_a_pooler(pooled_dsn: str, queue: Driver) -> None:  # noqa: F811
    with Faultline(pooled_dsn) as app:
        handle = family(app).enqueue(5)

        async def story() -> Any:
            await auntil(lambda: suspended(queue) == 1 and queue.value("select count(*) from faultline.ledger") == 5)
            queue.run(verbs.signal(handle.id, "go", 1))
            return await handle.aresult(60)

        assert work(app, story) == [0, 1, 2, 3, 4, 1]
    assert queue.broken_invariants() == []


def family(app: Faultline) -> Any:
    @app.step
    async def same(n: int) -> int:
        return n

    @app.task(max_attempts=3)
    async def child(n: int) -> int:
        return n

    @app.task(max_attempts=3)
    async def parent(job: Job, number: int) -> list[int]:
        found = await job.map(child, range(number))
        await job.sleep(0.01)
        return [*found, await job.do(same, await job.receive("go", int))]

    return parent


class CutOnce(Faults):
    """Cuts the wire where it is told, the first time that place is reached."""

    wanted = True

    def __init__(self, point: str) -> None:
        self._point = point
        self.reached: Counter[str] = Counter()

    def reach(self, point: str) -> None:
        self.reached[point] += 1
        if point == self._point and self.reached[point] == 1:
            raise WireCut(point)


@pytest.mark.long
@pytest.mark.parametrize(
    "verb", ["history", "spawn", "suspend", "resolve", "sweep", "collect_outcomes", "receive", "record"]
)
@pytest.mark.parametrize("point", ["before_{}_sent", "after_{}_committed"])
def test_a_wire_that_is_cut_at_any_call_of_a_flow_loses_and_doubles_nothing(
    dsn: str, queue: Driver, point: str, verb: str
) -> None:
    point = point.format(verb)
    cutting = CutOnce(point)
    with Faultline(dsn, host=Host(faults=cutting)) as app:
        parent = family(app)
        handles = [parent.enqueue(3) for _ in range(5)]
        for handle in handles:
            queue.run(verbs.signal(handle.id, "go", 1))

        # Well within the lease of thirty seconds: whatever was cut, the worker itself put it right.
        async def story() -> list[Any]:
            async with asyncio.timeout(25):
                return await asyncio.gather(*(handle.aresult(25) for handle in handles))

        assert work(app, story) == [[0, 1, 2, 1]] * 5
    assert cutting.reached[point]
    assert queue.value("select count(*) from faultline.ledger") == 5 * 4
    assert queue.broken_invariants() == []
