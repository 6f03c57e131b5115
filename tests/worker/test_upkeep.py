"""Every worker looks after everybody's work: what is old is forgotten, in bites, and any number may do it at once."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from faultline.core.faults import Faults, WireCut
from faultline.core.host import Host
from faultline.core.model import JobState, Retention, Submission
from faultline.store import verbs
from faultline.store.async_database import AsyncDatabase
from faultline.worker.base.counters import Tally
from faultline.worker.upkeep.maintenance import Upkeep
from tests.worker.working import InFlight, Moved, logged

if TYPE_CHECKING:
    import io
    from collections.abc import Callable

    from tests.driver import Clock, Driver

AGES = Retention(ledger=100, failed=200, journal=300, keys=400)


def on_time() -> bool:
    """No lease of its own may have run out."""
    return False


def tend(dsn: str, times: int = 1, *, at_once: int = 1, may_judge: Callable[[], bool] = lambda: True) -> None:
    async def main() -> None:
        database = AsyncDatabase(dsn, for_worker=True)
        many = [
            Upkeep(
                database,
                may_judge=may_judge,
                behind=on_time,
                retention=AGES,
                chance=random.Random(n),
                tally=Tally(lambda: 0.0),
            )
            for n in range(at_once)
        ]
        for _ in range(times):
            await asyncio.gather(*(upkeep.tick() for upkeep in many))
        await database.close()

    asyncio.run(main())


def kept(queue: Driver) -> dict[str, int]:
    tables = {"ledger": "ledger", "failed": "open_jobs", "journal": "journal", "keys": "keys"}
    return {what: queue.value(f"select count(*) from faultline.{table}") for what, table in tables.items()}


def test_what_has_ended_is_forgotten_at_its_age_and_not_before(dsn: str, queue: Driver, clock: Clock) -> None:
    queue.enqueue(idempotency_key="done")
    queue.complete(queue.claim_one())
    queue.enqueue()
    queue.fail(queue.claim_one(), then="fail")
    everything = {"ledger": 1, "failed": 1, "journal": 1, "keys": 1}
    assert kept(queue) == everything

    for seconds, what in ((99, None), (2, "ledger"), (100, "failed"), (100, "journal"), (100, "keys")):
        clock.advance(seconds)
        tend(dsn)
        if what is not None:
            everything[what] = 0
        assert kept(queue) == everything


def test_a_backlog_of_old_rows_is_forgotten_in_bites(dsn: str, queue: Driver, clock: Clock) -> None:
    queue.run(verbs.enqueue_many([Submission("t")] * 2500))
    while leases := queue.claim(1000):
        queue.complete(*leases)
    assert kept(queue)["ledger"] == 2500
    clock.advance(101)
    tend(dsn)
    assert kept(queue)["ledger"] == 0


def test_what_is_too_much_for_one_round_is_forgotten_in_the_next_ones(dsn: str, queue: Driver, clock: Clock) -> None:
    """A busy queue finishes more in a minute than one round forgets: without the next ones its ledger grows for ever."""
    for _ in range(11):
        queue.run(verbs.enqueue_many([Submission("t")] * 2000))
    while leases := queue.claim(1000):
        queue.complete(*leases)
    clock.advance(101)

    tend(dsn, times=2)

    assert kept(queue)["ledger"] == 0


def test_a_job_whose_lease_ran_out_is_taken_back_once_by_many(dsn: str, queue: Driver, clock: Clock) -> None:
    for _ in range(50):
        queue.enqueue(lease_seconds=5)
    assert len(queue.claim(50)) == 50
    clock.advance(6)
    tend(dsn, at_once=5)
    assert queue.value("select count(*) from faultline.open_jobs where state = 'queued'") == 50
    assert queue.value("select count(*) from faultline.journal where event = 'lease_reaped'") == 50
    assert queue.broken_invariants() == []


def test_a_bound_that_is_wrong_hides_a_lease_for_seconds_even_after_a_reap_that_waited_for_minutes(
    dsn: str, queue: Driver, clock: Clock
) -> None:
    """As after the server's clock was set back."""
    queue.enqueue(lease_seconds=5)
    lease = queue.claim_one()

    async def story(loop: Moved) -> list[JobState]:
        faults, states = InFlight("reap"), []
        database = AsyncDatabase(dsn, for_worker=True, host=Host(faults=faults))
        chance, tally = random.Random(1), Tally(lambda: 0.0)
        upkeep = Upkeep(database, may_judge=lambda: True, behind=on_time, retention=AGES, chance=chance, tally=tally)
        faults.then = lambda: setattr(loop, "moved", 600.0)
        await upkeep.reap()
        faults.then = lambda: None

        clock.advance(6)
        upkeep._lower_bound = datetime(3000, 1, 1, tzinfo=UTC)  # noqa: SLF001
        for seconds in (0, 21):
            loop.moved += seconds
            await upkeep.reap()
            states.append(queue.state(lease.job_id))
        await database.close()
        return states

    loop = Moved()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        assert runner.run(story(loop)) == [JobState.RUNNING, JobState.QUEUED]


@pytest.mark.parametrize("judges", [True, False])
def test_one_that_has_just_connected_judges_nobody(
    dsn: str,
    queue: Driver,
    clock: Clock,
    judges: bool,  # noqa: FBT001
) -> None:
    """Others that come back from the same outage must not be taken for dead."""
    queue.connection.execute("select faultline.heartbeat('gone', 'h', 1, 'v', '{default}', '{}', true)")
    queue.enqueue(lease_seconds=300)
    queue.claim_one(worker="gone")
    clock.advance(60)

    tend(dsn, may_judge=lambda: judges)

    expected = "queued" if judges else "running"
    assert queue.value("select state from faultline.open_jobs") == expected


class CutOnce(Faults):
    """Loses the connection when a reap is about to be sent for the first time."""

    wanted = True

    def __init__(self, then: Callable[[], None]) -> None:
        self._then = then
        self._cut = False

    def reach(self, point: str) -> None:
        if point == "before_reap_sent" and not self._cut:
            self._cut = True
            self._then()
            raise WireCut


def test_what_was_decided_before_the_connection_was_lost_is_not_used_after_it(dsn: str, queue: Driver, clock: Clock) -> None:
    queue.connection.execute("select faultline.heartbeat('slow', 'h', 1, 'v', '{default}', '{}', true)")
    queue.enqueue(lease_seconds=300)
    queue.claim_one(worker="slow")
    clock.advance(60)
    may_judge = [True]
    host = Host(faults=CutOnce(lambda: may_judge.append(False)))

    async def story() -> None:
        database = AsyncDatabase(dsn, for_worker=True, host=host)
        chance, tally = random.Random(1), Tally(lambda: 0.0)
        upkeep = Upkeep(
            database, may_judge=lambda: may_judge[-1], behind=on_time, retention=AGES, chance=chance, tally=tally
        )
        await upkeep.reap()
        await database.close()

    asyncio.run(story())

    assert queue.value("select state from faultline.open_jobs") == "running"


def test_a_worker_that_was_stopped_reaps_nothing_before_its_own_leases_are_renewed(
    dsn: str, queue: Driver, clock: Clock
) -> None:
    """Stopped in the middle, when it had already begun to look for what has run out."""
    queue.enqueue(lease_seconds=5)
    lease = queue.claim_one(worker="own")
    clock.advance(6)
    behind = [False]

    async def story() -> list[JobState]:
        database = AsyncDatabase(dsn, for_worker=True, host=Host(faults=CutOnce(lambda: behind.append(True))))
        chance, tally, states = random.Random(1), Tally(lambda: 0.0), []
        upkeep = Upkeep(
            database, may_judge=lambda: True, behind=lambda: behind[-1], retention=AGES, chance=chance, tally=tally
        )
        for _ in range(2):
            await upkeep.reap()
            states.append(queue.state(lease.job_id))
            behind.append(False)
        await database.close()
        return states

    assert asyncio.run(story()) == [JobState.RUNNING, JobState.QUEUED]


def test_a_database_that_is_away_is_said_and_survived() -> None:
    tend("postgresql://127.0.0.1:1/nothing?connect_timeout=1")


@pytest.mark.parametrize("reason", ["lease_expired", "worker_lost"])
def test_a_job_that_fails_because_its_worker_died_is_logged_as_an_error_and_counted(
    dsn: str, queue: Driver, clock: Clock, log: io.StringIO, reason: str
) -> None:
    lease_seconds = 5 if reason == "lease_expired" else 300
    queue.connection.execute("select faultline.heartbeat('gone', 'h', 1, 'v', '{mail}', '{}', true)")
    failed, requeued = (
        queue.enqueue(task, queue="mail", lease_seconds=lease_seconds, max_attempts=most)
        for task, most in (("poison", 1), ("other", 2))
    )
    for lease in queue.claim(2, queue="mail", worker="gone"):
        if lease.job_id == failed:
            queue.record_start(lease)
    clock.advance(60)
    tally = Tally(lambda: 0.0)

    async def story() -> None:
        database = AsyncDatabase(dsn, for_worker=True)
        upkeep = Upkeep(
            database, may_judge=lambda: True, behind=on_time, retention=AGES, chance=random.Random(1), tally=tally
        )
        await upkeep.reap()
        await database.close()

    asyncio.run(story())

    assert [queue.state(job_id) for job_id in (failed, requeued)] == [JobState.FAILED, JobState.QUEUED]
    assert (tally.of("mail").failed, tally.of("mail").requeued) == (1, 1)
    (told,) = logged(log, "job_failed")
    del told["at"]
    assert told == {
        "event": "job_failed",
        "level": "error",
        "job_id": str(failed),
        "token": 1,
        "task": "poison",
        "queue": "mail",
        "attempt": 1,
        "max_attempts": 1,
        "error": "the worker died or lost its lease during the last attempt",
        "reason": reason,
    }


def test_a_reconcile_that_fails_is_not_repeated_at_every_tick(dsn: str, queue: Driver, log: io.StringIO) -> None:
    """It may have taken too long: then it would be all that the server does."""
    queue.execute(
        "create or replace function faultline.reconcile(max_jobs integer default 1000) returns setof uuid language plpgsql"
        " as $$ begin raise exception 'it takes too long'; end $$"
    )

    tend(dsn, times=3)

    assert len(logged(log, "upkeep_failed")) == 1


def test_a_part_that_fails_keeps_no_other_from_being_done(dsn: str, queue: Driver, clock: Clock, log: io.StringIO) -> None:
    queue.execute(
        "create or replace function faultline.maintain_limits(max_groups integer default 500) returns integer language"
        " plpgsql"
        " as $$ begin raise exception 'a number is wrong'; end $$"
    )
    queue.complete(queue.new_lease())
    late = queue.enqueue(expires_seconds=10)
    clock.advance(1000)

    tend(dsn)

    assert kept(queue)["ledger"] == 0
    assert queue.state(late) is JobState.CANCELLED
    assert [told["error"].splitlines()[0] for told in logged(log, "upkeep_failed")] == ["a number is wrong"]


def test_while_the_database_is_away_nothing_else_is_tried(log: io.StringIO) -> None:
    tend("postgresql://127.0.0.1:1/nothing?connect_timeout=1")

    assert len(logged(log, "upkeep_failed")) == 1
