"""The heartbeat on its own, tick by tick: when it renews, when it lets go, and what it makes of the answers."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING, Any

import pytest

from faultline.core.host import Host
from faultline.runtime.heartbeat import Heartbeat, Thread
from faultline.runtime.hold import Hold
from faultline.runtime.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.driver import Driver, Sessions

NOWHERE = "postgresql://127.0.0.1:1/nothing?connect_timeout=1"
LEASE_SECONDS = 30.0


class Time:
    """The steady clock of a worker, moved by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class ByHand:
    """A pulse that beats when the test says so."""

    def __init__(self, tick: Callable[[], float], _: Callable[[], None]) -> None:
        self.tick = tick
        self.woken = 0

    def start(self) -> None: ...

    def wake(self) -> None:
        self.woken += 1

    async def stop(self, last: Callable[[], None]) -> None:
        last()


@pytest.fixture
def time() -> Time:
    return Time()


def heartbeat_on(dsn: str, time: Time) -> Heartbeat:
    return Heartbeat(dsn, "w", ["default"], Host(monotonic=time, pulse=ByHand), Tally(time))


@pytest.fixture
def heartbeat(dsn: str, time: Time) -> Iterator[Heartbeat]:
    beating = heartbeat_on(dsn, time)
    yield beating
    asyncio.run(beating.stop())


def hold_of(queue: Driver, time: Time) -> Hold:
    queue.enqueue(lease_seconds=LEASE_SECONDS)
    return Hold(queue.claim_one(), time.now, Tally(time).of("default"))


def renewals(queue: Driver, hold: Hold) -> Any:
    return queue.job(hold.lease.job_id).renewals


def test_a_lease_is_renewed_at_a_third_and_not_before(queue: Driver, heartbeat: Heartbeat, time: Time) -> None:
    hold = hold_of(queue, time)
    heartbeat.keep([hold])

    time.now += 9.9
    heartbeat.tick()
    assert renewals(queue, hold) == 0

    time.now += 0.2
    heartbeat.tick()
    assert renewals(queue, hold) == 1
    assert hold.trusted_until == time.now + LEASE_SECONDS


def test_a_lease_whose_ending_is_on_its_way_is_renewed_only_when_that_takes_long(
    queue: Driver, heartbeat: Heartbeat, time: Time
) -> None:
    hold = hold_of(queue, time)
    heartbeat.keep([hold])
    hold.ending = True

    time.now += 19.9
    heartbeat.tick()
    assert renewals(queue, hold) == 0

    time.now += 0.2
    heartbeat.tick()
    assert renewals(queue, hold) == 1


def test_it_asks_to_be_called_when_something_is_due(queue: Driver, heartbeat: Heartbeat, time: Time) -> None:
    assert heartbeat.tick() == pytest.approx(1.0)  # the next sign of life
    hold = hold_of(queue, time)
    time.now += 9.6
    heartbeat.keep([hold])
    assert heartbeat.tick() == pytest.approx(0.4)  # the renewal


def test_trust_is_counted_from_before_the_round_trip(dsn: str, queue: Driver) -> None:
    """Every look at the clock takes a second, as if everything were slow: what is slow must not lengthen a lease."""
    slow = Time()

    def look() -> float:
        slow.now += 1.0
        return slow.now

    beating = Heartbeat(dsn, "w", ["default"], Host(monotonic=look, pulse=ByHand), Tally(look))
    hold = hold_of(queue, slow)
    beating.keep([hold])
    slow.now += 10
    asked_after = slow.now
    beating.tick()
    assert renewals(queue, hold) == 1
    # Looked at for the tick, for the database's time after the beat, then just before asking; not after the answer.
    assert hold.renewed_at == asked_after + 3
    asyncio.run(beating.stop())


def test_what_cannot_be_renewed_in_time_is_let_go_and_never_earlier(queue: Driver, time: Time) -> None:
    cut_off = heartbeat_on(NOWHERE, time)
    hold = hold_of(queue, time)
    cut_off.keep([hold])

    time.now += LEASE_SECONDS - 0.05
    wait = cut_off.tick()
    assert hold.lost is None
    assert wait <= 0.06  # it will look again in time

    time.now += 0.05
    cut_off.tick()
    assert hold.lost == "lease_expired"


def test_a_lease_is_let_go_in_time_while_a_beat_hangs(dsn: str, queue: Driver, sessions: Sessions) -> None:
    queue.enqueue(lease_seconds=1)
    lease = queue.claim_one()
    blocker = sessions.open()
    blocker.begin()
    blocker.connection.execute("lock table faultline.workers in access exclusive mode")  # a beat waits for it, 10 s at most

    async def story() -> float:
        beating = Heartbeat(dsn, "w", ["default"], Host(), Tally(monotonic))
        hold = Hold(lease, monotonic(), Tally(monotonic).of("default"))
        beating.keep([hold])
        begun = monotonic()
        beating.start()
        while hold.lost is None:
            await asyncio.sleep(0.01)
        took = monotonic() - begun
        blocker.rollback()
        await beating.stop()
        return took

    assert 0.9 < asyncio.run(story()) < 5


def test_a_lease_under_its_own_transaction_is_kept(queue: Driver, time: Time) -> None:
    cut_off = heartbeat_on(NOWHERE, time)
    hold = hold_of(queue, time)
    hold.in_transaction = True
    cut_off.keep([hold])

    time.now += LEASE_SECONDS * 2
    cut_off.tick()
    assert hold.lost is None

    hold.in_transaction = False
    cut_off.tick()
    assert hold.lost == "lease_expired"


def test_a_refused_renewal_loses_the_lease_with_the_databases_reason(
    queue: Driver, heartbeat: Heartbeat, time: Time
) -> None:
    kept, lost = hold_of(queue, time), hold_of(queue, time)
    heartbeat.keep([kept, lost])
    queue.release(lost.lease)

    time.now += 11
    heartbeat.tick()

    assert (kept.lost, lost.lost) == (None, "lease_lost")
    time.now += 11
    heartbeat.tick()
    assert renewals(queue, kept) == 2
    assert len(queue.refusals(lost.lease.job_id)) == 1  # asked once, not for ever


def test_what_was_dropped_is_not_renewed(queue: Driver, heartbeat: Heartbeat, time: Time) -> None:
    hold = hold_of(queue, time)
    heartbeat.keep([hold])
    heartbeat.drop([hold])
    time.now += 11
    heartbeat.tick()
    assert renewals(queue, hold) == 0


def test_a_cancelled_job_is_lost_at_once(queue: Driver, heartbeat: Heartbeat, time: Time) -> None:
    hold = hold_of(queue, time)
    heartbeat.keep([hold])
    heartbeat.lose(hold.lease.job_id, "not_running")
    assert hold.lost == "not_running"


def test_a_worker_that_falls_asleep_says_so_at_the_next_tick(queue: Driver, heartbeat: Heartbeat) -> None:
    heartbeat.tick()
    heartbeat.sleep_on(frozenset({"default"}))
    heartbeat.tick()
    assert queue.value("select sleeping from faultline.workers") == ["default"]
    heartbeat.sleep_on(frozenset())
    heartbeat.tick()
    assert queue.value("select sleeping from faultline.workers") == []


def test_stopping_takes_the_worker_off_the_list(dsn: str, queue: Driver, time: Time) -> None:
    beating = heartbeat_on(dsn, time)
    beating.tick()
    assert queue.value("select count(*) from faultline.workers") == 1
    asyncio.run(beating.stop())
    assert queue.value("select count(*) from faultline.workers") == 0


def test_the_thread_beats_again_when_it_is_woken_and_ends_when_it_is_stopped() -> None:
    async def story() -> list[str]:
        loop, told = asyncio.get_running_loop(), []
        ticks: asyncio.Queue[None] = asyncio.Queue()

        def tick() -> float:
            loop.call_soon_threadsafe(ticks.put_nowait, None)
            return 3600.0

        thread = Thread(tick, lambda: None)
        thread.start()
        await asyncio.wait_for(ticks.get(), 10)
        thread.wake()
        await asyncio.wait_for(ticks.get(), 10)
        await asyncio.wait_for(thread.stop(lambda: told.append("last")), 10)
        return told

    assert asyncio.run(story()) == ["last"]
