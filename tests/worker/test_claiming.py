"""What a claim got is kept when the server crashes, also where the claim did not wait for the disk."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import psycopg
import pytest

from faultline.core.host import Host
from faultline.store import verbs
from faultline.store.async_database import AsyncDatabase
from faultline.store.database import run_on
from faultline.store.verbs import limit
from faultline.worker.claim.claim_durability import Syncing, gather
from faultline_proof.postgres import Postgres
from tests.worker.test_feed import feed_on
from tests.worker.working import InFlight, Moved

if TYPE_CHECKING:
    from pathlib import Path

    from faultline.core.model import Lease
    from tests.driver import Driver

#: What did not wait for the disk is lost with the server.
LAZY = {"wal_writer_delay": "10s", "autovacuum": "off"}
#: Above what counts as slow, as an average.
SLOW_SECONDS = 0.05


class Sent(InFlight):
    """Keeps the names of the statements that were sent, too."""

    def __init__(self, statement: str) -> None:
        super().__init__(statement)
        self.names: list[str] = []

    def reach(self, point: str) -> None:
        super().reach(point)
        if point.startswith("before_"):
            self.names.append(point.removeprefix("before_").removesuffix("_sent"))


def claim_twice(dsn: str, *, limited: bool, seconds: float) -> list[str]:
    """What is sent for the second of two claims, where the first one took so long."""

    async def story(loop: Moved) -> list[str]:
        sent = Sent("claim")
        database = AsyncDatabase(dsn, host=Host(faults=sent))
        feed = feed_on(database)
        feed.within = set() if limited else None
        sent.then = lambda: setattr(loop, "moved", seconds)
        await feed._claim(1)  # noqa: SLF001 - one claim, without the loop around it
        sent.names.clear()
        assert len(await feed._claim(1)) == 1  # noqa: SLF001
        await database.close()
        return sent.names

    loop = Moved()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(story(loop))


@pytest.mark.parametrize(
    ("limited", "seconds", "sent"),
    [
        (True, SLOW_SECONDS, ["claim", "sync_claim"]),
        (True, 0.001, ["claim"]),
        # Its worker may not know yet that the queue has limits: it does not sync_claim, so the claim waits itself.
        (False, SLOW_SECONDS, ["claim"]),
    ],
)
def test_a_claim_is_synced_where_claims_are_slow(
    dsn: str, queue: Driver, *, limited: bool, seconds: float, sent: list[str]
) -> None:
    queue.run(limit.declare_queue("default", {"queue": {"concurrency": 10}}))
    for _ in range(2):
        queue.enqueue()

    assert claim_twice(dsn, limited=limited, seconds=seconds) == sent


def claim(syncing: Syncing, seconds: float, *, disk: float, others: int = 0) -> None:
    """One that waits for as many others, each of which does as this one does."""
    if syncing.needed:
        syncing.answered(seconds * (1 + others), disk)
    else:
        syncing.answered((seconds + disk) * (1 + others), None)


def test_claims_that_wait_for_the_disk_alone_wait_for_it_themselves() -> None:
    """To sync them afterwards would be one statement more, and nobody waits for them."""
    syncing = Syncing()
    for _ in range(10):
        claim(syncing, 0.002, disk=0.005)

    assert not syncing.needed


def test_claims_that_wait_for_others_are_synced_afterwards_until_they_do_not() -> None:
    """Of eight workers that claim one after another, each waits for seven."""
    syncing = Syncing()
    for _ in range(10):
        claim(syncing, 0.002, disk=0.005, others=7)
    assert syncing.needed

    for _ in range(10):
        claim(syncing, 0.002, disk=0.005)
    assert not syncing.needed


def test_claims_that_were_slow_once_and_are_quick_now_are_not_synced() -> None:
    """As after the start of a worker: the first claims plan their statements."""
    syncing = Syncing()
    for _ in range(3):
        claim(syncing, 0.05, disk=0.001)
    assert syncing.needed

    for _ in range(20):
        claim(syncing, 0.002, disk=0.001)
    assert not syncing.needed


def test_a_disk_that_was_slow_once_is_not_remembered_for_ever() -> None:
    syncing = Syncing()
    for _ in range(10):
        claim(syncing, 0.002, disk=0.05)
    for _ in range(30):
        claim(syncing, 0.002, disk=0.0)
    for _ in range(10):
        claim(syncing, 0.004, disk=0.0, others=7)

    assert syncing.needed


@pytest.mark.parametrize(("claim_seconds", "waits"), [(0.02, 0.01), (5.0, 0.02)])
def test_slow_claims_wait_for_more_slots(claim_seconds: float, waits: float) -> None:
    async def story() -> float:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        await gather(claim_seconds, wanted=1, slots=10)
        return loop.time() - begun

    assert waits <= asyncio.run(story()) < 1


@pytest.mark.parametrize(("claim_seconds", "wanted", "slots"), [(0.02, 10, 20), (0.02, 10, 500), (0.001, 1, 10)])
def test_quick_claims_and_large_ones_do_not_wait(claim_seconds: float, wanted: int, slots: int) -> None:
    with pytest.raises(StopIteration):
        gather(claim_seconds, wanted, slots).send(None)


@pytest.mark.long
def test_nothing_of_a_claim_runs_that_a_crash_took_back(tmp_path: Path) -> None:
    """Its token is given out again: two runs of a job would have the same."""
    with Postgres(tmp_path / "server", settings=LAZY) as server:
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            run_on(connection, limit.declare_queue("default", {"queue": {"concurrency": 10}}))
            connection.execute("select faultline.enqueue('t')")

        assert claim_and_crash(server, "claim") == []
        assert [lease.fencing_token for lease in claim_and_crash(server, "sync_claim")] == [1]
        assert owner_of_the_job(server) == "w/1"


def claim_and_crash(server: Postgres, moment: str) -> list[Lease]:
    """What a claim gives to run if the server crashes when this statement is answered."""

    async def story() -> list[Lease]:
        crash = InFlight(moment)
        database = AsyncDatabase(server.dsn, host=Host(faults=crash))
        await database.run(verbs.claimed_by("nobody"))  # connects
        feed = feed_on(database)
        feed.within, feed._syncing.needed = set(), True  # noqa: SLF001
        crash.then = lambda: once(crash, server)
        leases = await feed._claim(1)  # noqa: SLF001
        await database.close()
        return leases

    return asyncio.run(story())


def once(crash: InFlight, server: Postgres) -> None:
    crash.then = lambda: None
    server.kill()
    server.start()


def owner_of_the_job(server: Postgres) -> str | None:
    with psycopg.connect(server.dsn) as connection:
        row = connection.execute("select lease_owner from faultline.open_jobs").fetchone()
        assert row is not None
        return None if row[0] is None else str(row[0])
