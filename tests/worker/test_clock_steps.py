"""The database's clock is set forward: no living worker loses a job by it, and the dead are still noticed."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest

from faultline.core.host import Host
from faultline.core.model import JobState, Retention
from faultline.store.async_database import AsyncDatabase
from faultline.worker.base.counters import Tally
from faultline.worker.lease.heartbeat import Heartbeat
from faultline.worker.lease.held_lease import HeldLease
from faultline.worker.upkeep.maintenance import Upkeep
from tests.worker.beating import ByHand, Time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.driver import Clock, Driver, Sessions

#: One and a half of each lease, and much more. A long lease is renewed rarely.
STEPS = [4.5, 90.0, 600.0]
LEASE_SECONDS = {"a": 3.0, "b": 3.0, "c": 60.0}


class Crew:
    """Workers with one started job each, which has one attempt. Both clocks go on together, unless one is set."""

    def __init__(self, dsn: str, queue: Driver, clock: Clock, time: Time) -> None:
        self._dsn, self._queue, self._clock, self._time = dsn, queue, clock, time
        self._all: dict[str, Heartbeat] = {}
        self._holds: dict[str, HeldLease] = {}

    def hire(self) -> None:
        for name, seconds in LEASE_SECONDS.items():
            host = Host(monotonic=self._time, pulse=ByHand)
            self._all[name] = Heartbeat(self._dsn, name, ["default"], host, Tally(self._time))
            lease = self._queue.new_lease(worker=name, max_attempts=1, lease_seconds=seconds)
            self._queue.record_start(lease)
            self._holds[name] = HeldLease(lease, self._time.now, Tally(self._time).of("default"))
            self._all[name].keep([self._holds[name]])

    def work(self, seconds: float, *names: str) -> None:
        """All of these beat and renew, every tenth of a second."""
        for _ in range(round(seconds * 10)):
            self.heartbeat(*names)
            self._clock.advance(0.1)
            self._time.now += 0.1

    def heartbeat(self, *names: str) -> None:
        for name in names:
            self._all[name].tick()

    def reap(self, name: str) -> None:
        async def once() -> None:
            database, beating = AsyncDatabase(self._dsn, for_worker=True), self._all[name]
            upkeep = Upkeep(
                database,
                may_judge=beating.may_judge,
                behind=beating.behind,
                latest=beating.database_time_max,
                retention=Retention(),
                chance=random.Random(1),
                tally=Tally(self._time),
            )
            await upkeep.reap()
            await database.close()

        asyncio.run(once())

    def kill(self, name: str) -> None:
        self._all.pop(name)._session.close()  # noqa: SLF001 - without a word

    def jobs(self) -> set[tuple[JobState, int]]:
        """States and attempts."""
        found = (self._queue.job(hold.lease.job_id) for hold in self._holds.values())
        return {(job.state, job.attempt) for job in found}

    def state(self, name: str) -> JobState:
        return self._queue.state(self._holds[name].lease.job_id)

    def dismiss(self) -> None:
        for beating in self._all.values():
            asyncio.run(beating.stop())


@pytest.fixture
def crew(dsn: str, queue: Driver, clock: Clock, time: Time) -> Iterator[Crew]:
    clock.set_since_start(60)
    hired = Crew(dsn, queue, clock, time)
    hired.hire()
    hired.work(4, "a", "b", "c")
    yield hired
    hired.dismiss()


UNTOUCHED = {(JobState.RUNNING, 1)}


@pytest.mark.parametrize("step", STEPS)
def test_who_reaps_before_the_first_heartbeat_after_a_step_takes_nothing(crew: Crew, clock: Clock, step: float) -> None:
    clock.advance(step)

    crew.reap("a")
    assert crew.jobs() == UNTOUCHED

    crew.work(6, "a", "b", "c")
    crew.reap("a")
    assert crew.jobs() == UNTOUCHED


@pytest.mark.parametrize("step", STEPS)
def test_who_has_beaten_after_a_step_gives_the_others_time_to_beat(crew: Crew, clock: Clock, step: float) -> None:
    clock.advance(step)

    for _ in range(9):
        crew.work(0.1, "a")
        crew.reap("a")
        crew.reap("b")
    assert crew.jobs() == UNTOUCHED

    for _ in range(80):
        crew.work(0.1, "a", "b", "c")
        crew.reap("a")
        crew.reap("b")
    assert crew.jobs() == UNTOUCHED


def test_a_clock_that_is_set_forward_and_back_costs_no_job(crew: Crew, clock: Clock) -> None:
    for step in (600, -600, 30, -30):
        clock.advance(step)
        for _ in range(12):
            crew.reap("a")
            crew.work(0.1, "a", "b", "c")
            crew.reap("c")

    assert crew.jobs() == UNTOUCHED


def test_who_died_before_a_step_is_noticed_within_seconds_of_it(crew: Crew, clock: Clock) -> None:
    crew.kill("b")
    clock.advance(600)

    for _ in range(75):
        crew.work(0.1, "a", "c")
        crew.reap("a")

    assert crew.state("b") is JobState.FAILED
    assert (crew.state("a"), crew.state("c")) == (JobState.RUNNING, JobState.RUNNING)


def test_a_step_costs_no_job_of_a_worker_whose_row_is_locked(crew: Crew, clock: Clock, sessions: Sessions) -> None:
    """Its heartbeat waits for the row, and so hears of no time."""
    somebody = sessions.open()
    somebody.begin()
    somebody.execute("select from faultline.workers where id = 'c' for update")
    clock.advance(600)

    for _ in range(8):
        crew.heartbeat("c")
        for _ in range(10):
            crew.work(0.1, "a", "b")
            crew.reap("a")
    somebody.rollback()

    assert crew.jobs() == UNTOUCHED


def test_without_a_step_the_dead_are_noticed_as_soon_as_before(crew: Crew) -> None:
    crew.kill("b")

    for _ in range(33):
        crew.work(0.1, "a", "c")
        crew.reap("a")

    assert crew.state("b") is JobState.FAILED


def test_a_reap_that_arrives_late_judges_by_when_it_was_sent(crew: Crew, clock: Clock) -> None:
    """As behind a lock, or in a full pool: it is no step, and takes what had expired by then."""
    crew.kill("b")
    crew.work(4, "a", "c")
    clock.advance(1)

    crew.reap("a")

    assert crew.state("b") is JobState.FAILED
    assert (crew.state("a"), crew.state("c")) == (JobState.RUNNING, JobState.RUNNING)
