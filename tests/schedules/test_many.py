"""Many schedules that are due at once are decided together: quickly, each tick once, and a bad one harms itself alone."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from faultline.core.schedules import FIRE_MAX, Plan
from faultline.store.verbs import schedules as verbs
from faultline.store.verbs.schedules import Decision
from faultline.worker.upkeep.scheduler import batches, planned
from tests.schedules.test_scheduler import played, scheduler

if TYPE_CHECKING:
    from faultline import Faultline
    from tests.driver import Clock, Driver, Sessions

FIRED = "select count(*), count(distinct schedule_id), count(job_id) from faultline.ticks where outcome = 'fired'"


MAKE = """
select count(faultline.set_schedule('s' || lpad(n::text, 4, '0'), json_build_object(
  'every', 60, 'job', json_build_object('task', 'report', 'queue', 'mail', 'args', json_build_object('n', n))
))) from generate_series(1, %s) n
"""


def counted(app: Faultline) -> Counter[str]:
    """How often each statement is sent from now on."""
    sent: Counter[str] = Counter()
    run = app.async_database.run

    async def counting(statement: Any) -> Any:
        sent[statement.name] += 1
        return await run(statement)

    app.async_database.run = counting  # type: ignore[method-assign]
    return sent


async def made_due(app: Faultline, clock: Clock, queue: Driver, count: int) -> None:
    """So many schedules have a position, and their next tick has come."""
    clock.take()
    queue.execute(MAKE, count)
    await app.adeclare()
    await scheduler(app).tick()
    clock.advance(61)


def test_a_thousand_schedules_are_decided_in_a_few_transactions(app: Faultline, clock: Clock, queue: Driver) -> None:
    async def story() -> tuple[int, Counter[str]]:
        await made_due(app, clock, queue, 1000)
        sent = counted(app)
        return await scheduler(app).tick(), sent

    fired, sent = played(app, story)

    assert fired == 1000
    assert sent.total() <= 20 + 11, sent
    assert queue.execute(FIRED) == [(1000, 1000, 1000)]


def test_workers_that_decide_at_once_make_one_job_for_each_tick(app: Faultline, clock: Clock, queue: Driver) -> None:
    async def story() -> int:
        await made_due(app, clock, queue, 120)
        fired = await asyncio.gather(*(scheduler(app, f"w{n}").tick() for n in range(3)))
        return sum(fired) + await scheduler(app).tick()

    assert played(app, story) == 120
    assert queue.execute(FIRED) == [(120, 120, 120)]


def test_a_worker_that_dies_in_the_middle_leaves_all_ticks_to_the_next_one(
    app: Faultline, clock: Clock, queue: Driver, sessions: Sessions
) -> None:
    async def story() -> int:
        await made_due(app, clock, queue, 60)
        dying = sessions.open()
        due = dying.run(verbs.due_schedules(scheduler(app).digests, 50))
        dying.begin()
        assert len(dying.run(verbs.tick_many([Decision(one, planned(one)) for one in due]))) == 50
        sessions.end(dying)
        return await scheduler(app).tick()

    assert played(app, story) == 60
    assert queue.execute(FIRED) == [(60, 60, 60)]


def test_a_statement_that_is_sent_again_decides_nothing_twice(app: Faultline, clock: Clock, queue: Driver) -> None:
    async def story() -> list[int]:
        await made_due(app, clock, queue, 3)
        decisions = [Decision(one, planned(one)) for one in queue.run(verbs.due_schedules(scheduler(app).digests))]
        return [len(queue.run(verbs.tick_many(decisions))) for _ in range(2)]

    assert played(app, story) == [3, 0]


def test_a_bad_schedule_harms_itself_alone(app: Faultline, clock: Clock, queue: Driver, sessions: Sessions) -> None:
    """Its zone is unknown, its job is refused, or the job that it should cancel is locked."""

    @app.schedule(every=60, overlap="cancel")
    @app.task(queue="mail")
    async def locked() -> None: ...

    async def story() -> int:
        await made_due(app, clock, queue, 20)
        await scheduler(app).tick()
        clock.advance(60)
        queue.execute("update faultline.schedules set spec = (spec::jsonb - 'every' || %s)::json where name = 's0001'", ZONE)
        queue.execute(
            "update faultline.schedules set spec = jsonb_set(spec::jsonb, '{job,queue}', '5')::json where name = 's0002'"
        )
        somebody = sessions.open()
        somebody.begin()
        somebody.execute("select from faultline.open_jobs where task = 'locked' for update")
        fired = await scheduler(app).tick()
        somebody.rollback()
        return fired

    assert played(app, story) == 18
    failed = queue.execute("select name, failures from faultline.schedules where last_error is not null order by name")
    assert failed == [("s0001", 1), ("s0002", 1)]
    assert played(app, lambda: scheduler(app).tick()) == 1


@pytest.mark.parametrize(
    ("overlap", "locks"),
    [
        ("allow", "select from faultline.schedules where name <= 's0110' for update"),
        ("cancel", "select from faultline.open_jobs where (args ->> 'n')::int <= 110 for update"),
    ],
)
def test_many_that_are_locked_keep_no_others_from_their_ticks(
    app: Faultline, clock: Clock, queue: Driver, sessions: Sessions, overlap: str, locks: str
) -> None:
    """More than one look finds. They are due first, and stay due."""

    async def story() -> int:
        clock.take()
        queue.execute(MAKE.replace("'every', 60", f"'every', 60, 'overlap', '{overlap}'"), 130)
        for _ in range(2):
            await scheduler(app).tick()
            clock.advance(61)
        somebody = sessions.open()
        somebody.begin()
        somebody.execute(locks)
        fired = await scheduler(app).tick()
        somebody.rollback()
        return fired

    assert played(app, story) == 20


REFUSED = "jsonb_set(spec::jsonb, '{job,queue}', '5')::json"
ZONE = '{"cron": "* * * * *", "tz": "Mars/Olympus"}'


def test_a_batch_has_as_many_ticks_as_one_schedule_may_have_and_unique_jobs_stand_alone(queue: Driver) -> None:
    clock = queue.value("select now()")

    def decision(name: str, ticks: int, job: dict[str, Any]) -> Decision:
        due = verbs.DueSchedule(name, 1, clock, clock, {"every": 60, "job": job}, clock)
        return Decision(due, Plan([clock] * ticks, [], None))

    plain, unique = {"task": "t"}, {"task": "t", "unique": {"key": "k"}}
    some = [decision("a", FIRE_MAX, plain), decision("b", 1, plain), decision("u", 1, unique)]
    some += [decision(f"c{n}", 1, plain) for n in range(verbs.DECIDED_AT_ONCE)]

    found = [[one.due.name for one in batch] for batch in batches(some)]

    assert sorted(len(batch) for batch in found) == [1, 1, 1, verbs.DECIDED_AT_ONCE]
    assert ["u"] in found
    assert ["a"] in found
