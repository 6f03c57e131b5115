"""Jobs that compute share statements with each other. Nothing else waits for them, and none waits for others in vain."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from faultline import Faultline, JobState, Processes
from faultline.store.async_database import AsyncDatabase
from faultline.worker.base.counters import Tally
from faultline.worker.lease.held_lease import HeldLease
from faultline.worker.run.processes import main
from faultline.worker.write.completer import Completer
from faultline.worker.write.endings import Completed, Ending
from tests.waiting import until
from tests.worker import computing
from tests.worker.test_feed import feed_on
from tests.worker.test_runner import Line, held
from tests.worker.working import Moved, results

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from faultline.core.model import Lease
    from tests.driver import Driver

JOBS = 300


@pytest.fixture
def app(dsn: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Faultline]:
    monkeypatch.setenv("FAULTLINE_DSN", dsn)
    yield computing.app
    computing.app.close()


def calls(connection: psycopg.Connection[Any], function: str) -> int:
    """How often it was called, once that is counted."""
    counted = "select sum(calls)::integer from pg_stat_user_functions where funcname = %s having sum(calls) > 0"
    (found,) = until(lambda: connection.execute(counted, (function,)).fetchone())
    return int(found)


def test_a_busy_worker_claims_and_completes_several_that_compute_at_once(app: Faultline, dsn: str, queue: Driver) -> None:
    queue.connection.execute(f"alter database {queue.connection.info.dbname} set track_functions = 'all'".encode())
    handles = app.enqueue_many(computing.add.bind(computing.Order(n), 1) for n in range(JOBS))

    found = results(app, handles, queues={"default": 6}, task_processes=2)

    assert [one["sum"] for one in found] == [n + 1 for n in range(JOBS)]
    with psycopg.connect(dsn, autocommit=True) as fresh:
        claims, completions = calls(fresh, "claim"), calls(fresh, "complete")
    seconds = queue.value("select extract(epoch from max(finished_at) - min(finished_at))::float from faultline.jobs")
    # By the time, not by the number of jobs: a busy machine runs fewer in the same time.
    assert completions <= 20 + seconds / 0.06
    assert claims <= 20 + seconds / 0.01


def test_a_feed_of_jobs_that_compute_claims_several_before_its_processes_run_dry() -> None:
    async def story() -> Any:
        return feed_on(AsyncDatabase("postgresql://127.0.0.1:1/nothing"))

    feed = asyncio.run(story())
    feed.concurrency = 4
    feed._pace.per_second = 200.0  # noqa: SLF001 - twenty are held ahead, and three last until the next claim is answered

    def wanted(*, queued: int, waiting: int, running: int = 4, computing: int = 4) -> int:
        feed.running, feed.computing, feed.queued = running, computing, queued
        feed.waiting = deque(held("t") for _ in range(waiting))
        return int(feed.wanted())

    assert [wanted(queued=3, waiting=n) for n in (20, 3, 1)] == [0, 0, 0]
    assert [wanted(queued=3, waiting=0), wanted(queued=0, waiting=3)] == [20, 17]
    assert wanted(queued=3, waiting=4, computing=3) == 2  # one of them does not compute: the next may start at any moment
    feed.concurrency = 6
    assert wanted(queued=4, waiting=0, running=5, computing=5) == 21  # a slot is free: another job could start


class Computing(Line):
    """Jobs of a queue that compute, all at once in one process, and how each ending is put."""

    def __init__(self, app: Faultline, tasks: list[str]) -> None:
        super().__init__(app, tasks)
        self.how: list[tuple[str, str]] = []
        self._executor.task_processes = 1

    async def run(self) -> int:
        try:
            for hold in list(self.waiting):
                self._executor.start(hold, self)
            await asyncio.wait(self._executor._runners)  # noqa: SLF001
        finally:
            await self._executor.end()
        return 0

    def put(self, ending: Ending) -> None:
        self.how.append((ending.hold.lease.task, "alone"))

    def put_with_others(self, ending: Ending) -> None:
        self.how.append((ending.hold.lease.task, "with others"))


def test_an_ending_waits_only_while_others_compute() -> None:
    line = Computing(computing.app, ["about"] * 3)

    asyncio.run(line.run())

    assert line.how == [("about", "with others"), ("about", "with others"), ("about", "alone")]
    assert (line.computing, line.queued) == (0, 0)


def test_the_ending_of_another_task_does_not_wait_for_those_that_compute() -> None:
    line = Computing(computing.app, ["about", "about", "beside"])

    asyncio.run(line.run())

    assert ("beside", "alone") in line.how
    assert ("about", "with others") in line.how


def test_an_ending_that_gives_back_a_permit_does_not_wait() -> None:
    line = Computing(computing.app, ["about"] * 2)
    line.within = set()

    asyncio.run(line.run())

    assert line.how == [("about", "alone")] * 2


@pytest.mark.parametrize(
    ("limits", "jobs", "spent", "measured"),
    [
        (Processes(max_jobs=2), 1, False, 0),
        (Processes(max_jobs=2), 2, True, 0),
        (Processes(max_memory=1), 1, True, 1),
        (Processes(max_memory=2), 1, False, 1),
    ],
)
def test_a_process_measures_its_memory_only_for_a_task_with_a_limit(
    limits: Processes, jobs: int, *, spent: bool, measured: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []

    def memory_bytes() -> int:
        looked.append(1)
        return 2 * 1024 * 1024

    monkeypatch.setattr(main, "memory_bytes", memory_bytes)

    assert main.is_spent(limits, jobs) is spent
    assert len(looked) == measured


class Kept:
    permits = None

    def drop(self, holds: Sequence[HeldLease]) -> None: ...


@pytest.mark.parametrize(
    ("words", "waits"), [({}, True), ({"in_flow": True}, False), ({"lease_seconds": 0.5}, False), ({"lost": "lost"}, False)]
)
def test_an_ending_that_something_waits_for_is_written_at_once(
    dsn: str, queue: Driver, words: dict[str, Any], *, waits: bool
) -> None:
    first, second = queue.enqueue(), queue.enqueue()
    leases = {lease.job_id: lease for lease in queue.claim(2)}

    async def story() -> tuple[JobState, JobState]:
        database, kept = AsyncDatabase(dsn), Kept()
        completer = Completer(database, kept, Tally(lambda: 0.0))  # type: ignore[arg-type]
        completer.put_with_others(Completed(changed(leases[first]), "1"))
        while queue.state(first) is JobState.RUNNING:
            await asyncio.sleep(0)
        completer.put_with_others(Completed(changed(leases[second], **words), "2"))
        while not waits and queue.state(second) is JobState.RUNNING:
            await asyncio.sleep(0)
        before = queue.state(second)
        await completer.flushed()
        await database.close()
        return before, queue.state(second)

    with asyncio.Runner(loop_factory=Moved) as runner:  # its clock stands still
        assert runner.run(story()) == (JobState.RUNNING if waits else JobState.SUCCEEDED, JobState.SUCCEEDED)


def changed(lease: Lease, *, lost: str | None = None, **words: Any) -> HeldLease:
    hold = HeldLease(replace(lease, **words), 0.0, Tally(lambda: 0.0).of("default"))
    hold.lost = lost
    return hold
