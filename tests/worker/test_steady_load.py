"""How long a job waits at a steady rate, and how many claims that takes: real feeds, hints and notifiers, in virtual time.

Only the database is simulated: a claim takes a millisecond and sees what was committed by a third of it; a notification
comes some time after its job. How busy the machine is makes no difference.
"""

from __future__ import annotations

import asyncio
import json
import random
import tracemalloc
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

import pytest

from faultline.core.model import Lease
from faultline.worker.base.counters import Tally
from faultline.worker.claim.feed import Feed
from faultline.worker.claim.wakeups import Hints
from faultline.worker.run.crash_quarantine import CrashQuarantine
from faultline_proof.world.loop import VirtualLoop

if TYPE_CHECKING:
    from faultline.worker.claim.notifier import Notifier

EPOCH = datetime(2030, 1, 1, tzinfo=UTC)
SECONDS = 4.0
CLAIM_SECONDS = 0.0009


class Waiting(NamedTuple):
    committed_at: float
    id: UUID


class Found(NamedTuple):
    """Milliseconds from the call that enqueues to the first line of the task, and claims a second of one worker."""

    p50: float
    p99: float
    claims: float
    useless: float


class World:
    """A queue with its workers, which notifications reach so late."""

    dsn = ""

    def __init__(self, *, workers: int, late_ms: float, seed: int = 1) -> None:
        self.loop = VirtualLoop()
        self.chance = random.Random(seed)
        self.waits: list[float] = []
        self._late_ms = late_ms
        self._queue: list[Waiting] = []
        self._enqueued_at: dict[UUID, float] = {}
        self._claims = self._useless = 0
        self._notifiers: dict[str, Notifier] = {}
        self._feeds = [self._feed(f"w{number}") for number in range(workers)]

    async def run(self, statement: Any) -> list[Lease]:
        """The one statement of a feed: a claim."""
        _, owner, wanted, *_ = statement.params_now()
        seconds = CLAIM_SECONDS * self.chance.uniform(0.85, 1.3)
        await asyncio.sleep(seconds * 0.35)
        got = [one for one in self._queue if one.committed_at <= self.loop.time()][:wanted]
        self._queue = [one for one in self._queue if one not in got]
        await asyncio.sleep(seconds * 0.65)
        self._claims += 1
        self._useless += not got
        return [lease(one, owner) for one in got]

    def started(self, job_id: UUID) -> None:
        self.waits.append(1000 * (self.loop.time() - self._enqueued_at[job_id]))

    def serve(self, rate: float, *, forged: float) -> Found:
        """Jobs at this rate, at random moments, beside so many forged hints a second for every worker."""
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            return runner.run(self._serve(rate, forged))

    async def _serve(self, rate: float, forged: float) -> Found:
        beside = [self.loop.create_task(feed.run()) for feed in self._feeds]
        if forged:
            beside.append(self.loop.create_task(self._forge(forged)))
        at = 0.0
        while at < SECONDS:
            at += self.chance.expovariate(rate)
            await asyncio.sleep(max(0.0, at - self.loop.time()))
            self.loop.create_task(self._enqueue())
        each = SECONDS * len(self._feeds)
        claims, useless = self._claims / each, self._useless / each
        await asyncio.sleep(2)
        for task in beside:
            task.cancel()
        assert len(self.waits) == len(self._enqueued_at)
        waits = sorted(self.waits)
        return Found(waits[len(waits) // 2], waits[int(len(waits) * 0.99)], claims, useless)

    def flooded(self, payload: str, *, claim_hangs: bool) -> tuple[int, int]:
        """How many bytes it takes to hear this 5,000 times at once, and how many claims follow within 0.1 s."""
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            return runner.run(self._flooded(payload, claim_hangs=claim_hangs))

    async def _flooded(self, payload: str, *, claim_hangs: bool) -> tuple[int, int]:
        feed = self.loop.create_task(self._feeds[0].run())
        # In the middle of its first claim, or after it.
        await asyncio.sleep(CLAIM_SECONDS / 2 if claim_hangs else CLAIM_SECONDS * 2)
        tracemalloc.start()
        for _ in range(5000):
            self._notify(payload)
        kept, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        before = max(self._claims, 1)
        await asyncio.sleep(0.1)
        feed.cancel()
        return kept, self._claims - before

    async def _enqueue(self) -> None:
        job_id = UUID(int=self.chance.getrandbits(128))
        self._enqueued_at[job_id] = self.loop.time()
        await asyncio.sleep(self.chance.uniform(0.0006, 0.0011))
        self._queue.append(Waiting(self.loop.time(), job_id))
        at = EPOCH + timedelta(seconds=self.loop.time())
        chosen = self.chance.sample(sorted(self._notifiers), min(3, len(self._notifiers)))
        hint = {"queue": "q", "priority": 0, "run_at": at.isoformat(), "workers": chosen, "ids": [str(job_id)]}
        self.loop.call_later(self.chance.expovariate(1000 / self._late_ms), self._notify, json.dumps(hint))

    async def _forge(self, per_second: float) -> None:
        while True:
            await asyncio.sleep(1 / per_second)
            self._notify('{"queue": "q", "priority": 0, "run_at": "2020-01-01T00:00:00Z"}')

    def _notify(self, payload: str) -> None:
        for notifier in self._notifiers.values():
            notifier._heard(payload)  # noqa: SLF001 - a hint, without a connection around it

    def _feed(self, worker_id: str) -> Feed:
        around: Any = Around(self, worker_id)
        feeds: dict[str, Feed] = {}
        database: Any = self
        hints = Hints(database, worker_id, around, feeds, lambda: None)
        hints.notifier.listening = True
        self._notifiers[worker_id] = hints.notifier
        feeds["q"] = Feed(
            "q",
            50,
            database=database,
            leases=around,
            executor=around,
            unstarted=around,
            hints=hints,
            poll=None,
            company=CrashQuarantine(),
            chance=self.chance,
            tally=Tally(EPOCH.timestamp),
        )
        return feeds["q"]


class Around:
    """What one feed works with."""

    def __init__(self, world: World, worker_id: str) -> None:
        self.worker_id = worker_id
        self._world = world

    def owner_of_claim(self, _: str) -> str:
        return f"{self.worker_id}/1"

    def took(self, _: str, __: object) -> None: ...

    def sleep_on(self, _: object) -> None: ...

    def doubt(self, _: object) -> None: ...

    def start(self, hold: Any, feed: Feed) -> None:
        self._world.started(hold.lease.job_id)
        self._world.loop.call_soon(feed.finished, hold.lease)


def lease(one: Waiting, owner: str) -> Lease:
    return Lease(
        job_id=one.id,
        fencing_token=1,
        owner=owner,
        task="t",
        args={},
        attempt=1,
        max_attempts=5,
        needs_start_record=False,
        reaps=0,
        priority=0,
        next_run_at=EPOCH + timedelta(seconds=one.committed_at),
        lease_seconds=30.0,
        key=None,
        in_flow=False,
        group=None,
    )


def served(rate: float, *, late_ms: float, workers: int = 1, forged: float = 0.0) -> Found:
    return World(workers=workers, late_ms=late_ms).serve(rate, forged=forged)


@pytest.mark.parametrize("late_ms", [0.1, 0.3, 1.0, 2.0])
@pytest.mark.parametrize("rate", [100, 250, 500, 1000, 2000])
def test_at_a_steady_rate_a_job_waits_for_milliseconds(rate: float, late_ms: float) -> None:
    found = served(rate, late_ms=late_ms)

    assert found.p99 < 10
    assert found.claims <= rate * 1.1


@pytest.mark.parametrize("workers", [2, 3, 8])
@pytest.mark.parametrize("rate", [50, 250, 500, 1000])
def test_nor_does_it_wait_longer_where_several_workers_share_a_queue(rate: float, workers: int) -> None:
    """A hint names more workers than there are jobs: the others find nothing, and that is no attack."""
    found = served(rate, late_ms=1.0, workers=workers)

    assert found.p99 < 10


@pytest.mark.parametrize("rate", [20, 100, 500])
def test_beside_a_thousand_forged_hints_a_second_a_job_waits_for_a_tenth_of_a_second_at_most(rate: float) -> None:
    found = served(rate, late_ms=1.0, forged=1000.0)

    assert found.p99 < 120
    assert found.claims <= 50 + rate * 1.1  # at random moments


def test_hints_of_jobs_that_a_claim_has_just_brought_lead_to_no_other_claim() -> None:
    assert served(500, late_ms=1.0).useless < 2.0


HINT = '{"queue": "q", "priority": 0, "run_at": "2020-01-01T00:00:00Z"}'
STAND_BY = f'{HINT[:-1]}, "workers": [{"0, " * 900}"w0"], "ids": ["{UUID(int=1)}"]}}'


@pytest.mark.parametrize("claim_hangs", [False, True])
@pytest.mark.parametrize("payload", [HINT, STAND_BY])
def test_a_flood_of_hints_takes_little_memory_and_leads_to_one_look(payload: str, *, claim_hangs: bool) -> None:
    kept, looks = World(workers=1, late_ms=1.0).flooded(payload, claim_hangs=claim_hangs)

    assert kept < 1_000_000
    assert looks == 1
