"""Many idle queues of one worker are polled for together."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from datetime import timedelta
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from faultline import Faultline
from faultline.core.faults import Faults
from faultline.core.host import Host
from faultline.core.model import Bound
from faultline.store.async_database import AsyncDatabase
from faultline.worker.base.counters import Tally
from faultline.worker.claim.notifier import Notifier
from faultline.worker.claim.poll import Poll
from tests.worker.test_feed import feed_on, pass_by
from tests.worker.working import PATIENCE, InFlight, Moved

if TYPE_CHECKING:
    import pytest

    from tests.driver import Driver

QUEUES = {f"q{n}": 1 for n in range(200)}


class Sent(Faults):
    """Counts every statement that is sent."""

    wanted = True

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def reach(self, point: str) -> None:
        if point.startswith("before_") and point.endswith("_sent"):
            self.counts[point] += 1


def test_many_idle_queues_cost_a_few_statements_a_second(dsn: str) -> None:
    sent = Sent()

    async def story() -> tuple[Counter[str], float]:
        with Faultline(dsn, host=Host(faults=sent)) as app:
            async with asyncio.timeout(PATIENCE), app.worker(QUEUES):
                while sent.counts["before_due_sent"] < 4:
                    await asyncio.sleep(0.05)
                before, began = sent.counts.copy(), monotonic()
                while sent.counts["before_due_sent"] < 8:
                    await asyncio.sleep(0.01)
                return sent.counts - before, monotonic() - began

    counts, seconds = asyncio.run(story())

    assert seconds > 1  # about two; a busy machine may make more of it
    # Each queue is looked at by itself once a minute, give or take a quarter.
    assert counts.total() < 20 * seconds


def test_a_job_in_one_of_many_idle_queues_is_found_without_a_notification(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As behind a transaction-mode pooler, where nobody can listen."""

    async def deaf(_: Notifier) -> None: ...

    monkeypatch.setattr(Notifier, "run", deaf)
    sent = Sent()

    async def story() -> list[float]:
        waited: list[float] = []
        with Faultline(dsn, host=Host(faults=sent)) as app:

            @app.task(queue="q7")
            async def nothing() -> None: ...

            async with asyncio.timeout(PATIENCE), app.worker(QUEUES):
                while sent.counts["before_due_sent"] < 4:
                    await asyncio.sleep(0.05)
                for _ in range(3):
                    handle = await nothing.aenqueue()
                    await handle.aresult(timeout=PATIENCE)
                    job = await handle.ajob()
                    assert job.claimed_at is not None
                    waited.append((job.claimed_at - job.created_at).total_seconds())
                await app.async_database.close()
        return waited

    # Half a second; a busy machine may make more of it. Alone it would be found after a minute.
    assert max(asyncio.run(story())) < 20


def test_polls_look_from_the_feeds_bounds_on_and_now_and_then_from_anywhere(dsn: str, queue: Driver) -> None:
    """Bounds that are wrong hide a job for seconds, even after a look that waited for minutes."""
    job = queue.job(queue.enqueue())
    assert job.next_run_at is not None
    bound = Bound(0, job.next_run_at + timedelta(hours=1))

    async def story(loop: Moved) -> list[tuple[bool, list[Bound]]]:
        faults, found = InFlight("due"), []
        database = AsyncDatabase(dsn, for_worker=True, host=Host(faults=faults))
        poll = Poll(database, random.Random(1), Tally(lambda: 0.0))
        feed = feed_on(database)
        with poll.watching(feed):
            for bounds, waits, passes in (([bound], 600, 0), ([bound], 0, 0), ([below], 0, 0), ([bound], 0, 11)):
                feed._bounds = {one.priority: one for one in bounds}  # noqa: SLF001
                feed._hint.clear()  # noqa: SLF001
                faults.then = partial(pass_by, loop, waits)
                loop.moved += passes
                await poll.tick()
                found.append((feed._hint.is_set(), feed.bounds()))  # noqa: SLF001
        await database.close()
        return found

    below = Bound(0, job.next_run_at)
    loop = Moved()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        # What was found from the bounds on leaves them as they are: the claim that follows needs them too.
        assert runner.run(story(loop)) == [(True, []), (False, [bound]), (True, [below]), (True, [])]
