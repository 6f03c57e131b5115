"""Who may run beside whom, so that a job which kills its workers is found out."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from faultline.core.faults import Faults
from faultline.core.host import Host
from faultline.core.model import Bound, Lease, Submission
from faultline.store import verbs
from faultline.store.async_database import AsyncDatabase
from faultline.worker.base.counters import Tally
from faultline.worker.claim.feed import Feed
from faultline.worker.claim.notifier import Hint
from faultline.worker.lease.held_lease import HeldLease
from faultline.worker.run.crash_quarantine import CrashQuarantine
from tests.worker.working import InFlight, Moved

if TYPE_CHECKING:
    from uuid import UUID

    from tests.driver import Driver

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def held(*, reaps: int = 0) -> HeldLease:
    lease = Lease(
        job_id=uuid4(),
        fencing_token=1,
        owner="w/1",
        task="t",
        args={},
        attempt=1,
        max_attempts=5,
        needs_start_record=True,
        reaps=reaps,
        priority=0,
        next_run_at=NOW,
        lease_seconds=30.0,
        key="k",
        in_flow=False,
        group=None,
    )
    return HeldLease(lease, 0.0, Tally(lambda: 0.0).of("default"))


def admitted(company: CrashQuarantine[int], reaps: int, concurrency: int = 64) -> int:
    """How many jobs that were reaped so often may run at once."""
    count = 0
    while count < concurrency and company.admits(held(reaps=reaps), concurrency, 0):
        company.enter(held(reaps=reaps).lease)
        count += 1
    return count


def test_a_job_that_was_reaped_has_less_and_less_company() -> None:
    assert [admitted(CrashQuarantine[int](), reaps) for reaps in (0, 1, 2, 3, 9)] == [64, 16, 4, 1, 1]


def test_after_three_crashes_no_other_marked_job_runs_beside_it() -> None:
    company, suspect = CrashQuarantine[int](), held(reaps=3)
    company.enter(suspect.lease)

    assert not company.admits(held(), 64, 0)

    company.leave(suspect.lease)
    assert company.admits(held(), 64, 0)


def test_it_waits_for_the_marked_ones_that_run_and_no_new_ones_pass_it() -> None:
    company, running, suspect = CrashQuarantine[int](), held(), held(reaps=3)
    company.enter(running.lease)

    assert not company.admits(suspect, 64, 0)
    assert not company.admits(held(), 64, 0)

    company.leave(running.lease)
    assert company.admits(suspect, 64, 0)


def test_if_it_loses_its_lease_meanwhile_nobody_waits_for_it() -> None:
    company, running, suspect = CrashQuarantine[int](), held(), held(reaps=3)
    company.enter(running.lease)
    assert not company.admits(suspect, 64, 0)

    suspect.lose("lease_lost")
    company.leave(running.lease)

    assert company.admits(held(), 64, 0)


class Around:
    """All that a feed works with, but for the database."""

    worker_id = "w"

    def __init__(self, *, hints_may_be_missed: bool) -> None:
        self.hints_may_be_missed = hints_may_be_missed
        self.given_back: list[HeldLease] = []

    def owner_of_claim(self, _: str) -> str:
        return "w/1"

    def took(self, _: str, __: list[HeldLease]) -> None: ...

    def start(self, _: HeldLease, __: Feed) -> None: ...

    def release(self, holds: list[HeldLease]) -> None:
        self.given_back.extend(holds)

    def rests(self, _: str) -> bool:
        return self.hints_may_be_missed

    def works(self, _: str) -> None: ...


def feed_on(database: AsyncDatabase, *, hints_may_be_missed: bool = True, around: Any = None) -> Feed:
    around = around or Around(hints_may_be_missed=hints_may_be_missed)
    return Feed(
        "default",
        1,
        database=database,
        leases=around,
        executor=around,
        unstarted=around,
        hints=around,
        poll=None,
        company=CrashQuarantine(),
        chance=random.Random(1),
        tally=Tally(lambda: 0.0),
    )


def test_a_claim_that_waited_for_minutes_does_not_hide_work_for_longer(dsn: str, queue: Driver) -> None:
    job = queue.job(queue.enqueue())
    assert job.next_run_at is not None
    early = job.next_run_at - timedelta(hours=1)

    async def story(loop: Moved) -> list[int]:
        faults = InFlight("claim")
        database = AsyncDatabase(dsn, host=Host(faults=faults))
        feed = feed_on(database)
        faults.then = lambda: setattr(loop, "moved", 600.0)
        found = [len(await feed._claim(1))]  # noqa: SLF001 - one claim, without the loop around it
        faults.then = lambda: None

        queue.enqueue(run_at=early)  # below what that claim saw, and no hint tells of it
        for seconds in (0, 21):
            loop.moved += seconds
            found.append(len(await feed._claim(1)))  # noqa: SLF001
        await database.close()
        return found

    loop = Moved()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        assert runner.run(story(loop)) == [1, 0, 1]


@pytest.mark.parametrize(("seconds", "outcome"), [(15.0, "kept"), (25.0, "given back"), (600.0, "given back")])
def test_what_a_claim_got_after_most_of_its_lease_is_given_back_unstarted(
    dsn: str, queue: Driver, seconds: float, outcome: str
) -> None:
    queue.enqueue(lease_seconds=30)

    async def story(loop: Moved) -> str:
        faults = InFlight("claim")
        database = AsyncDatabase(dsn, host=Host(faults=faults))
        around = Around(hints_may_be_missed=True)
        feed = feed_on(database, around=around)
        faults.then = partial(pass_by, loop, seconds)
        await feed._claim(1)  # noqa: SLF001
        await database.close()
        return {(1, 0): "given back", (0, 1): "kept"}[len(around.given_back), feed.running + len(feed.waiting)]

    loop = Moved()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        assert runner.run(story(loop)) == outcome


def pass_by(loop: Moved, seconds: float) -> None:
    loop.moved += seconds


def test_what_is_held_ahead_lasts_until_a_slow_claim_is_answered(dsn: str, queue: Driver) -> None:
    queue.enqueue()

    async def story(loop: Moved) -> list[int]:
        faults = InFlight("claim")
        database = AsyncDatabase(dsn, host=Host(faults=faults))
        feed = feed_on(database)
        feed._pace.per_second = 1000.0  # noqa: SLF001
        found = [feed.wanted()]
        for seconds in (0.05, 60.0):
            faults.then = partial(pass_by, loop, seconds)
            for _ in range(30):
                await feed._claim(1)  # noqa: SLF001
            found.append(feed.wanted())
        await database.close()
        return found

    loop = Moved()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        assert runner.run(story(loop)) == pytest.approx([31, 51, 101], rel=0.1)


def test_a_hint_that_comes_while_a_claim_is_on_its_way_is_not_undone_by_its_answer(dsn: str, queue: Driver) -> None:
    job = queue.job(queue.enqueue())
    assert job.next_run_at is not None
    early = job.next_run_at - timedelta(hours=1)

    async def story() -> list[Bound]:
        faults = InFlight("claim")
        database = AsyncDatabase(dsn, host=Host(faults=faults))
        feed = feed_on(database)
        faults.then = lambda: feed.hint(Hint(lowest=Bound(0, early)))
        assert len(await feed._claim(1)) == 1  # noqa: SLF001 - one claim, without the loop around it
        await database.close()
        return [*feed._bounds.values()]  # noqa: SLF001

    assert asyncio.run(story()) == [Bound(0, early)]


@pytest.mark.parametrize(("may_be_missed", "found", "seconds"), [(True, True, 0.01), (True, False, 0.5), (False, True, 0.5)])
def test_polls_come_quickly_after_a_find_where_hints_may_be_missed(
    may_be_missed: bool,  # noqa: FBT001
    found: bool,  # noqa: FBT001
    seconds: float,
) -> None:
    async def story() -> float:
        feed = feed_on(AsyncDatabase(""), hints_may_be_missed=may_be_missed)
        feed._poll_seconds = 0.4  # noqa: SLF001
        feed.hint(Hint())
        await feed._rest(found=found)  # noqa: SLF001
        return feed._poll_seconds  # noqa: SLF001

    assert asyncio.run(story()) == seconds


def test_a_claim_that_looks_everywhere_is_for_a_few_so_that_it_waits_for_nobody(dsn: str, queue: Driver) -> None:
    queue.run(verbs.enqueue_many([Submission("t")] * 200))

    async def story() -> list[int]:
        database = AsyncDatabase(dsn)
        feed = feed_on(database)
        feed.concurrency = 150
        claiming = asyncio.create_task(feed.run())
        while len(feed.waiting) + feed.running < 150:
            await asyncio.sleep(0.01)
        claiming.cancel()
        await database.close()
        return sorted(Counter(queue_owners(queue)).values())

    assert asyncio.run(story()) == [20, 130]


def queue_owners(queue: Driver) -> list[str]:
    rows = queue.connection.execute("select claimed_at::text from faultline.open_jobs where state = 'running'").fetchall()
    return [row[0] for row in rows]


def test_a_hint_that_comes_between_claims_is_not_kept(dsn: str) -> None:
    async def story() -> object:
        feed = feed_on(AsyncDatabase(dsn))
        for _ in range(3):
            feed.hint(Hint(lowest=Bound(0, NOW)))
        return feed._hinted  # noqa: SLF001

    assert asyncio.run(story()) is None


def test_a_hint_for_others_lowers_the_bounds_and_wakes_nobody(dsn: str, queue: Driver) -> None:
    job = queue.job(queue.enqueue())
    assert job.next_run_at is not None
    early = Bound(0, job.next_run_at - timedelta(hours=1))

    async def story() -> list[tuple[list[Bound], bool]]:
        database = AsyncDatabase(dsn)
        feed = feed_on(database)
        await feed._claim(1)  # noqa: SLF001
        found = []
        for wake_after in (None, 0.0):
            feed.hint(Hint(lowest=early, wake_after=wake_after))
            found.append(([*feed._bounds.values()], feed._hint.is_set()))  # noqa: SLF001
        await database.close()
        return found

    assert asyncio.run(story()) == [([early], False), ([early], True)]


def test_a_hint_of_a_job_that_came_back_reaches_below_others_of_its_moment(dsn: str, queue: Driver) -> None:
    first, _ = (placed.job_id for placed in queue.run(verbs.enqueue_many([Submission("t")] * 2)))

    async def story() -> list[UUID]:
        database = AsyncDatabase(dsn)
        feed = feed_on(database)
        leases = await feed._claim(2)  # noqa: SLF001 - claims, without the loop around them
        await database.run(verbs.release(leases[:1]))
        claimed = await feed._claim(2)  # noqa: SLF001
        assert claimed == []  # it lies below the bound, and nobody has told
        feed.hint(Hint(lowest=Bound(0, leases[0].next_run_at)))
        claimed = await feed._claim(2)  # noqa: SLF001
        await database.close()
        return [lease.job_id for lease in claimed]

    assert asyncio.run(story()) == [first]


class Counting(Faults):
    """Counts how often a statement was sent."""

    wanted = True

    def __init__(self, statement: str) -> None:
        self._point = f"before_{statement}_sent"
        self.count = 0

    def reach(self, point: str) -> None:
        self.count += point == self._point


def test_a_flood_of_hints_that_lead_to_nothing_is_not_a_flood_of_claims(dsn: str) -> None:
    """Any login can send them."""
    claims = Counting("claim")

    async def story() -> None:
        database = AsyncDatabase(dsn, for_worker=True, host=Host(faults=claims))
        feed = feed_on(database)
        running = asyncio.create_task(feed.run())
        give_up = asyncio.get_running_loop().time() + 1.5
        while asyncio.get_running_loop().time() < give_up:
            feed.hint(Hint())
            await asyncio.sleep(0.001)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await database.close()

    asyncio.run(story())

    assert 3 <= claims.count <= 100  # 20 at once, 40 a second, and polls
