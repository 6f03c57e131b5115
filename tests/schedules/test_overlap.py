"""What `overlap="one"` promises: one job of a schedule runs and one waits, whatever ends the one that runs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from faultline import Job, Unique
from faultline.store.verbs import flow
from tests.schedules.test_scheduler import played, scheduler
from tests.waiting import auntil

if TYPE_CHECKING:
    from uuid import UUID

    from faultline import Faultline
    from tests.driver import Clock, Driver


def test_with_one_never_two_run_at_once_and_the_second_starts_when_the_first_has_ended(
    app: Faultline, queue: Driver
) -> None:
    now, most, done = set[object](), list[int](), list[int]()

    @app.schedule(every=1, overlap="one")
    @app.task(queue="mail")
    async def slow(job: Job) -> None:
        now.add(job.id)
        most.append(len(now))
        await asyncio.sleep(1.5)
        now.discard(job.id)
        done.append(1)

    async def story() -> None:
        async with app.worker({"mail": 10}):
            skipped = "select count(*) from faultline.ticks where outcome = 'skipped'"
            await auntil(lambda: len(done) >= 3 and queue.value(skipped) > 0, seconds=30)

    played(app, story)
    assert max(most) == 1


@pytest.mark.parametrize("grouped", [False, True])
def test_with_one_a_killed_workers_job_is_not_overtaken(
    app: Faultline, queue: Driver, clock: Clock, *, grouped: bool
) -> None:
    words: dict[str, Any] = {"group": "all"} if grouped else {}
    if grouped:
        queue.execute("select faultline.set_limit('mail', '*', '{\"concurrency\": 5}')")

    @app.schedule(every=60, overlap="one")
    @app.task(queue="mail", **words)
    async def report() -> None: ...

    async def story() -> tuple[UUID, UUID]:
        ticking = scheduler(app)
        await ticking.begin()
        await ticking.tick()
        clock.advance(60)
        assert await ticking.tick() == 1
        lost = queue.claim_one(worker="killed", queue="mail")
        clock.advance(60)
        assert await ticking.tick() == 1
        clock.advance(31)
        queue.reap()
        # Its second attempt comes first; the job of the next tick goes on waiting.
        clock.advance(600)
        [again] = queue.claim(5, queue="mail")
        assert again.job_id == lost.job_id
        queue.complete(again)
        queue.run(flow.resolve())
        [waited] = queue.claim(5, queue="mail")
        return lost.job_id, waited.job_id

    first, second = played(app, story)
    assert [one.job_id for one in reversed(app.schedules.history("report"))][:2] == [first, second]
    assert queue.broken_invariants() == []


def test_with_one_what_stands_in_for_a_unique_job_does_not_wait_for_itself(
    app: Faultline, queue: Driver, clock: Clock
) -> None:
    @app.schedule(every=60, overlap="one")
    @app.task(queue="mail", unique=Unique("open", key="report"))
    async def report() -> None: ...

    async def story() -> None:
        ticking = scheduler(app)
        await ticking.begin()
        await ticking.tick()
        for _ in range(2):
            clock.advance(60)
            await ticking.tick()

    played(app, story)
    queue.complete(queue.claim_one(queue="mail"))
    assert queue.value("select count(*) from faultline.open_jobs where state = 'queued'") == 0
