"""What broke schedules in earlier designs, each as a story that must end well."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from faultline import Faultline
from faultline.store.verbs import schedules as verbs
from tests.schedules.test_scheduler import declared, played, scheduler

if TYPE_CHECKING:
    from tests.driver import Clock, Driver


def test_09_a_rolling_deployment_never_stops_a_schedule(dsn: str, queue: Driver, clock: Clock) -> None:
    old, new = declared(Faultline(dsn), every=60), declared(Faultline(dsn), every=30)

    async def story() -> list[float]:
        in_force = []

        async def deploy(app: Faultline, worker: str) -> None:
            queue.heartbeat(worker)
            await scheduler(app, worker).begin()
            in_force.append(queue.value("select (spec ->> 'every')::float8 from faultline.schedules"))

        async with old, new:
            await deploy(old, "v1-a")
            # While a worker of the old code lives, the new code waits: no taking of turns.
            await deploy(new, "v2-a")
            await deploy(old, "v1-b")
            await deploy(new, "v2-b")
            queue.execute("delete from faultline.workers where id like 'v1-%'")
            stale = await new.async_database.run(verbs.stale_schedules(["report"], [scheduler(new).digests[0]]))
            assert stale == ["report"]
            await deploy(new, "v2-c")
            # A straggler of the old code starts once more and ends: the new code stays in force.
            await deploy(old, "v1-c")
            queue.execute("delete from faultline.workers where id like 'v1-%'")
            clock.advance(31)
            ticking = scheduler(new, "v2-a")
            await ticking.tick()
            clock.advance(30)
            assert await ticking.tick() == 1
            # And back.
            queue.execute("delete from faultline.workers")
            await deploy(old, "v1-d")
            return in_force

    assert asyncio.run(story()) == [60.0, 60.0, 60.0, 60.0, 30.0, 30.0, 60.0]


def test_09_a_silent_worker_of_the_old_code_does_not_hold_the_schedule(dsn: str, queue: Driver, clock: Clock) -> None:
    old, new = declared(Faultline(dsn), every=60), declared(Faultline(dsn), every=30)

    async def story() -> list[str]:
        async with old, new:
            queue.heartbeat("v1")
            await scheduler(old, "v1").begin()
            clock.advance(16)
            queue.heartbeat("v2")
            answer = await new.async_database.run(verbs.declare_schedules("v2", new.schedule_declarations()))
            return [one.outcome for one in answer]

    assert asyncio.run(story()) == ["taken"]


def test_09_a_schedule_that_is_gone_from_the_code_is_orphaned_and_nobody_ticks_it(
    dsn: str, queue: Driver, clock: Clock
) -> None:
    old, new = declared(Faultline(dsn)), Faultline(dsn)

    async def story() -> int:
        async with old, new:
            queue.heartbeat("v1")
            await scheduler(old, "v1").begin()
            await scheduler(old, "v1").tick()
            queue.execute("delete from faultline.workers")
            clock.advance(60)
            # A worker lives, without this code.
            queue.heartbeat("v2")
            return await scheduler(new, "v2").tick()

    assert asyncio.run(story()) == 0
    with Faultline(dsn) as app:
        assert [one.state for one in app.schedules.list()] == ["orphaned"]


def test_09_a_renamed_schedule_keeps_its_position_and_its_history(dsn: str, queue: Driver, clock: Clock) -> None:
    old, new = declared(Faultline(dsn)), declared(Faultline(dsn), name="daily", was="report")

    async def story() -> None:
        async with old, new:
            queue.heartbeat("v1")
            await scheduler(old, "v1").begin()
            await scheduler(old, "v1").tick()
            clock.advance(60)
            await scheduler(old, "v1").tick()
            queue.heartbeat("v1")
            queue.heartbeat("v2")
            # Not beside the old one: both would tick.
            await scheduler(new, "v2").begin()
            assert queue.execute("select name from faultline.schedules") == [("report",)]
            queue.execute("delete from faultline.workers where id = 'v1'")
            await scheduler(new, "v2").begin()

    asyncio.run(story())
    with Faultline(dsn) as app:
        [line] = app.schedules.list()
        assert (line.name, line.next_at) == ("daily", line.clock + timedelta(seconds=60))
        assert [one.outcome for one in app.schedules.history("daily")] == ["fired"]


@pytest.mark.parametrize("in_force", ["report", "daily"])
def test_09_a_schedule_that_was_renamed_twice_names_both_and_each_database_finds_its_own(dsn: str, in_force: str) -> None:
    with declared(Faultline(dsn), name=in_force) as old:
        old.declare()
        [before] = old.schedules.list()
    with declared(Faultline(dsn), name="morning", was=["daily", "report"]) as new:
        new.declare()

        [after] = new.schedules.list()

    assert (after.name, after.created_at, after.since) == ("morning", before.created_at, before.since)


def test_26_schedules_that_fail_keep_no_other_from_its_ticks(app: Faultline, queue: Driver, clock: Clock) -> None:
    for number in range(150):
        name, zone = f"bad-{number}", "Mars/Olympus"
        spec = f'{{"cron": "* * * * *", "tz": "{zone}", "job": {{"task": "t"}}}}'
        queue.run(verbs.set_schedule(name, spec))
    queue.run(verbs.set_schedule("good", '{"every": 60, "job": {"task": "t"}}'))

    async def story() -> int:
        ticking = scheduler(app)
        await ticking.tick()
        clock.advance(60)
        return await ticking.tick()

    assert played(app, story) == 1
    failing = queue.execute(
        "select failures, last_error, look_at > faultline.clock() from faultline.schedules where name = 'bad-7'"
    )
    assert failing == [(2, failing[0][1], True)]
    assert "no time zone" in failing[0][1]
    # The same error is one entry, however often it comes.
    assert queue.value("select count(*) from faultline.journal where event = 'schedule_failed'") == 150


def test_28_what_was_paused_on_purpose_is_not_caught_up(app: Faultline, queue: Driver, clock: Clock) -> None:
    declared(app, catch_up="all")

    async def story() -> list[int]:
        ticking = scheduler(app)
        await ticking.begin()
        await ticking.tick()
        await app.schedules.apause("report", by="ann", reason="month end")
        clock.advance(3600)
        fired = [await ticking.tick()]
        await app.schedules.aresume("report")
        fired.append(await ticking.tick())
        clock.advance(60)
        fired.append(await ticking.tick())
        return fired

    assert played(app, story) == [0, 0, 1]
    # But it may be asked for.
    now = queue.value("select faultline.clock()")
    assert app.schedules.backfill("report", now - timedelta(seconds=600), now, by="ann") == 10
    assert app.schedules.backfill("report", now - timedelta(seconds=600), now, by="ann") == 0


def test_f10_four_tickers_at_once_make_one_job_for_each_tick(dsn: str, queue: Driver, clock: Clock) -> None:
    apps = [declared(Faultline(dsn), every=1, catch_up="all") for _ in range(4)]

    async def ticker(app: Faultline, number: int) -> int:
        ticking = scheduler(app, f"w{number}")
        return await ticking.tick()

    async def story() -> int:
        fired = 0
        await scheduler(apps[0]).begin()
        await scheduler(apps[0]).tick()
        for _ in range(10):
            clock.advance(random.choice([1, 2, 5, -3]))
            fired += sum(await asyncio.gather(*(ticker(app, number) for number, app in enumerate(apps))))
        for app in apps:
            await app.aclose()
        return fired

    fired = asyncio.run(story())
    assert queue.value("select count(*) from faultline.ticks where kind = 'tick'") == fired
    assert queue.value("select count(*) from faultline.jobs") == fired
    gaps = queue.execute("select distinct at - lag(at) over (order by at) from faultline.ticks")
    assert {gap for (gap,) in gaps} - {None} == {timedelta(seconds=1)}
    assert queue.broken_invariants() == []
