"""Workers declare the schedules of their code and decide about ticks: once each, and nobody leads."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from faultline import ConfigError, Faultline, IllegalTransition, JobRejected, ScheduleNotFound
from faultline.store.verbs import schedules as verbs
from faultline.worker.base.counters import Tally
from faultline.worker.upkeep.scheduler import Scheduler
from tests.waiting import auntil

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.driver import Clock, Driver

TICKS = "select at, kind, outcome, last_at, ticks, job_id from faultline.ticks order by at, kind"


def scheduler(app: Faultline, worker: str = "w") -> Scheduler:
    tally = Tally(app.host.monotonic, {"default": 1})
    return Scheduler(app.async_database, worker, app.schedule_declarations(), random.Random(1), tally)


def played(app: Faultline, story: Callable[[], Awaitable[Any]]) -> Any:
    async def play() -> Any:
        async with app:
            return await story()

    return asyncio.run(play())


def declared(app: Faultline, **words: Any) -> Faultline:
    """The task `report` with a schedule of this name, every minute unless told otherwise."""
    words = words if {"cron", "every", "at"} & words.keys() else words | {"every": 60}
    cron = words.pop("cron", None)

    @app.schedule(cron, **words)
    @app.task(queue="mail")
    async def report() -> None: ...

    return app


def test_a_program_declares_its_schedules_without_a_worker(app: Faultline) -> None:
    declared(app, cron="0 9 * * mon-fri")
    with pytest.raises(ScheduleNotFound, match=r"has started, or by app\.declare\(\)"):
        app.schedules.next("report")

    assert (app.declare(), played(app, app.adeclare)) == (1, 0)

    assert {tick.weekday() for tick in app.schedules.next("report", 10)} == {0, 1, 2, 3, 4}
    assert app.job(app.schedules.run_now("report")).task == "report"


def test_a_worker_declares_its_schedules_ticks_them_and_runs_their_jobs(app: Faultline) -> None:
    ran: list[int] = []

    @app.schedule(every=1, args=(7,))
    @app.task
    async def count(number: int) -> None:
        ran.append(number)

    async def story() -> None:
        async with app.worker({"default": 2}):
            await auntil(lambda: len(ran) >= 2)

    played(app, story)
    assert set(ran) == {7}
    [line] = app.schedules.list()
    assert (line.name, line.from_code, line.task, line.every, line.failures) == ("count", True, "count", 1.0, 0)
    assert [one.outcome for one in app.schedules.history("count")][-2:] == ["fired", "fired"]


def test_ticks_follow_the_position_by_the_databases_clock(app: Faultline, queue: Driver, clock: Clock) -> None:
    declared(app)

    async def story() -> list[int]:
        ticking = scheduler(app)
        await ticking.begin()
        fired = [await ticking.tick()]
        for _ in range(3):
            clock.advance(60)
            fired.append(await ticking.tick())
        # Set back by ten minutes: what was decided stays decided.
        clock.advance(-600)
        fired.append(await ticking.tick())
        clock.advance(660)
        fired.append(await ticking.tick())
        return fired

    assert played(app, story) == [0, 1, 1, 1, 0, 1]
    moments = [at for at, *_ in queue.execute(TICKS)]
    assert {second - first for first, second in pairwise(moments)} == {timedelta(minutes=1)}
    assert queue.value("select count(distinct job_id) from faultline.ticks") == 4


@pytest.mark.parametrize(
    ("catch_up", "window", "fired", "missed"),
    [("skip", None, 1, 10), ("latest", None, 1, 10), ("all", None, 11, 0), ("all", 200, 3, 8), ("latest", 0, 0, 11)],
)
def test_after_an_outage_missed_ticks_are_caught_up_as_asked_and_on_record(
    app: Faultline, queue: Driver, clock: Clock, catch_up: str, window: float | None, fired: int, missed: int
) -> None:
    words = {"catch_up": catch_up} | ({} if window is None else {"catch_up_seconds": window})
    declared(app, **words)

    async def story() -> None:
        ticking = scheduler(app)
        await ticking.begin()
        await ticking.tick()
        # Eleven ticks come due, the last of them half a minute ago.
        clock.advance(690)
        await ticking.tick()

    played(app, story)
    decided = queue.execute(
        "select coalesce(sum(ticks) filter (where kind = 'missed'), 0)::int, count(*) filter (where outcome = 'fired')"
        " from faultline.ticks"
    )
    assert decided == [(missed, fired)]
    assert queue.value("select next_at - faultline.clock() from faultline.schedules") == timedelta(seconds=30)


def test_with_skip_a_tick_is_missed_a_minute_late(app: Faultline, queue: Driver, clock: Clock) -> None:
    declared(app, cron="0 9 * * *", catch_up="skip")

    async def story() -> list[int]:
        ticking = scheduler(app)
        await ticking.begin()
        await ticking.tick()
        next_at = queue.value("select next_at from faultline.schedules")
        clock.advance((next_at - queue.value("select faultline.clock()")).total_seconds() + 61)
        first = await ticking.tick()
        clock.advance(86400 - 1 - 60 + 55)
        return [first, await ticking.tick()]

    assert played(app, story) == [0, 1]
    assert [outcome for _, _, outcome, *_ in queue.execute(TICKS)] == ["missed", "fired"]


def test_a_single_moment_ticks_once_and_the_schedule_has_ended(app: Faultline, queue: Driver, clock: Clock) -> None:
    at = queue.value("select faultline.clock()") + timedelta(hours=1)
    declared(app, at=at)

    async def story() -> list[int]:
        ticking = scheduler(app)
        await ticking.begin()
        fired = [await ticking.tick()]
        for _ in range(2):
            clock.advance(3600)
            fired.append(await ticking.tick())
        return fired

    assert played(app, story) == [0, 1, 0]
    [line] = app.schedules.list()
    assert (line.state, line.upcoming()) == ("ended", [])


def test_mistakes_are_refused_where_they_are_made(app: Faultline) -> None:
    @app.task
    async def report(day: str) -> None: ...

    with pytest.raises(ConfigError, match="position 1"):
        app.schedule("61 * * * *")
    with pytest.raises(ConfigError, match="sixth field"):
        app.schedule("0 30 2 * * *")
    with pytest.raises(ConfigError, match="no time zone"):
        app.schedule("0 9 * * *", tz="Mars/Olympus")
    with pytest.raises(ConfigError, match="one rule"):
        app.schedule()
    with pytest.raises(ConfigError, match="one rule"):
        app.schedule("* * * * *", every=60)
    with pytest.raises(ConfigError, match="day"):
        app.schedule("* * * * *")(report)
    with pytest.raises(ConfigError, match="every tick makes one"):
        app.schedule("* * * * *", args=("x",))(report.options(delay=5))
    with pytest.raises(ConfigError, match=r"above @app\.task"):
        app.schedule("* * * * *")(lambda: None)  # type: ignore[arg-type]
    app.schedule("* * * * *", args=("x",))(report)
    with pytest.raises(ConfigError, match="declared already"):
        app.schedule("* * * * *", args=("x",))(report)
    with pytest.raises(ScheduleNotFound, match="no schedule"):
        app.schedules.pause("nothing")
    with pytest.raises(ScheduleNotFound, match="no schedule"):
        app.schedules.next("nothing")
    with pytest.raises(ScheduleNotFound, match="no schedule"):
        app.schedules.history("nothing")
    with pytest.raises(ScheduleNotFound, match="no schedule"):
        app.schedules.backfill("nothing", datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC))
    with pytest.raises(ScheduleNotFound, match="in the code of a worker"):
        app.schedules.set("nothing", None)


def test_a_backfill_of_what_has_yet_to_come_is_refused(app: Faultline, clock: Clock) -> None:
    @app.task
    async def report() -> None: ...

    app.schedules.set("report", report.bind(), every=60)
    now = app.schedules.list()[0].clock

    with pytest.raises(JobRejected, match="yet to come"):
        app.schedules.backfill("report", now + timedelta(seconds=1), now + timedelta(days=1))
    with pytest.raises(JobRejected, match="swap the two moments"):
        app.schedules.backfill("report", now, now - timedelta(days=1))
    assert app.schedules.backfill("report", now - timedelta(seconds=150), now + timedelta(days=1)) > 0


def test_a_schedule_made_at_run_time_is_ticked_by_every_worker(app: Faultline, queue: Driver, clock: Clock) -> None:
    @app.task
    async def remind(user: int) -> None: ...

    assert app.schedules.set("remind-7", remind.bind(7), cron="*/5 * * * *", by="ann", reason="asked for it")
    assert not app.schedules.set("remind-7", remind.bind(7), cron="*/5 * * * *")
    assert len(app.schedules.next("remind-7", 3)) == 3

    async def story() -> int:
        ticking = scheduler(app)
        await ticking.tick()
        clock.advance(300)
        return await ticking.tick()

    assert played(app, story) == 1
    [line] = app.schedules.list()
    assert (line.from_code, line.orphaned, line.changed_by, line.reason) == (False, False, "ann", "asked for it")
    assert app.schedules.remove("remind-7")
    assert not app.schedules.remove("remind-7")


def test_what_a_person_sets_stays_in_force_until_it_is_set_back(app: Faultline, clock: Clock) -> None:
    declared(app)

    async def story() -> None:
        await scheduler(app).begin()
        await app.schedules.aset("report", app.tasks["report"].bind(), every=5, by="ann")
        # Another worker of the same code starts.
        await scheduler(app, "w2").begin()

    played(app, story)
    [line] = app.schedules.list()
    assert (line.every, line.overridden, line.from_code) == (5.0, True, True)
    assert app.schedules.set("report", None)
    [line] = app.schedules.list()
    assert (line.every, line.overridden) == (60.0, False)


def test_a_run_now_comes_beside_the_ticks(app: Faultline, queue: Driver, clock: Clock) -> None:
    declared(app, overlap="skip")

    async def story() -> list[int]:
        ticking = scheduler(app)
        await ticking.begin()
        await ticking.tick()
        await app.schedules.apause("report")
        job_id = await app.schedules.arun_now("report", by="ann")
        assert (await app.ajob(job_id)).task == "report"
        await app.schedules.aresume("report")
        await ticking.tick()
        clock.advance(60)
        return [await ticking.tick()]

    # The manual run has not ended: with `skip` the tick makes no other.
    assert played(app, story) == [0]
    assert sorted(one.outcome for one in app.schedules.history("report")) == ["manual", "skipped"]


def test_a_schedule_in_the_code_of_a_living_worker_is_not_removed(app: Faultline, queue: Driver) -> None:
    declared(app)
    queue.heartbeat("w")
    played(app, scheduler(app).begin)

    with pytest.raises(IllegalTransition, match="would make it again"):
        app.schedules.remove("report")
    queue.execute("delete from faultline.workers")
    assert app.schedules.remove("report")


def test_the_moment_of_its_tick_is_an_argument_of_the_task_if_it_asks(app: Faultline) -> None:
    seen: list[datetime] = []

    @app.schedule(every=1, tick_arg="tick")
    @app.task
    async def report(tick: datetime) -> None:
        seen.append(tick)

    async def story() -> None:
        async with app.worker({"default": 2}):
            await auntil(lambda: len(seen) >= 1)

    played(app, story)
    assert seen[0].tzinfo is not None
    assert seen[0].astimezone(UTC) == app.schedules.history("report")[-1].at


def test_what_is_declared_is_tried_again_after_a_refusal(app: Faultline, queue: Driver) -> None:
    declared(app)

    async def story() -> None:
        worker = app.worker({"default": 1})
        queue.execute("alter function faultline.declare_schedules(text, json) rename to declare_later")
        async with worker:
            queue.execute("alter function faultline.declare_later(text, json) rename to declare_schedules")
            worker._scheduler._declare_at = 0.0  # noqa: SLF001
            await auntil(lambda: queue.value("select count(*) from faultline.schedules") == 1)

    played(app, story)


def test_declarations_go_by_their_content() -> None:
    found = [declared(Faultline("postgresql://nowhere"), every=every).schedule_declarations()[0] for every in (60, 60, 61)]

    assert found[0] == found[1]
    assert found[0].digest != found[2].digest
    assert isinstance(found[0], verbs.Declaration)
