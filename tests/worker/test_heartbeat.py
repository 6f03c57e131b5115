"""The heartbeat on its own, tick by tick: when it renews, when it lets go, and what it makes of the answers."""

from __future__ import annotations

import asyncio
import contextvars
import os
import signal
import threading
from time import monotonic
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from faultline.core.host import Host
from faultline.core.running import running
from faultline.worker.base.counters import Tally
from faultline.worker.lease.heartbeat import Heartbeat
from faultline.worker.lease.heartbeat_thread import Thread
from faultline.worker.lease.held_lease import HeldLease
from tests.waiting import auntil
from tests.worker.beating import LEASE_SECONDS, NOWHERE, ByHand, Time, heartbeat_on, hold_of, renewals, session_of
from tests.worker.working import PATIENCE

if TYPE_CHECKING:
    from tests.driver import Driver, Sessions


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


def test_leases_are_renewed_while_heartbeats_are_refused(
    queue: Driver, sessions: Sessions, heartbeat: Heartbeat, time: Time
) -> None:
    """Somebody has locked the table of workers. The session, and the lock that it holds, are kept."""
    hold = hold_of(queue, time)
    heartbeat.keep([hold])
    heartbeat.tick()
    somebody = sessions.open()
    somebody.begin()
    somebody.execute("lock table faultline.workers in exclusive mode")

    time.now += 11
    seconds = heartbeat.tick()

    somebody.rollback()
    assert renewals(queue, hold) == 1
    assert (heartbeat.watched, heartbeat.reconnects) == (True, 0)
    assert seconds <= 0.5


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


def test_a_loop_is_blocked_by_the_job_whose_code_it_runs_also_in_a_task_that_the_job_has_started(
    queue: Driver, heartbeat: Heartbeat, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    holds = [hold_of(queue, time) for _ in range(2)]
    heartbeat.keep(holds)
    own, started, other = object(), contextvars.copy_context(), contextvars.copy_context()
    holds[0].attempt = own  # type: ignore[assignment]
    started.run(running.set, holds[1])

    def blocker(task: object) -> HeldLease | None:
        monkeypatch.setattr(asyncio, "current_task", lambda _: task)
        return heartbeat._blocker()  # noqa: SLF001 - a loop that is blocked for seconds shows it otherwise

    heartbeat.loop = asyncio.new_event_loop()
    heartbeat.loop.close()
    assert blocker(None) is None
    assert blocker(own) is holds[0]
    assert blocker(SimpleNamespace(get_context=lambda: started)) is holds[1]
    assert blocker(SimpleNamespace(get_context=lambda: other)) is None


def test_it_is_behind_from_the_end_of_a_lease_until_that_is_renewed(queue: Driver, heartbeat: Heartbeat, time: Time) -> None:
    hold = hold_of(queue, time)
    heartbeat.keep([hold])
    time.now += LEASE_SECONDS - 0.1
    assert not heartbeat.behind()

    time.now += 0.2
    assert heartbeat.behind()
    heartbeat.tick()

    assert renewals(queue, hold) == 1
    assert not heartbeat.behind()


@pytest.mark.parametrize("state", ["completed", "in_transaction"])
def test_a_lease_that_needs_no_renewal_does_not_leave_it_behind(
    queue: Driver, heartbeat: Heartbeat, time: Time, state: str
) -> None:
    hold = hold_of(queue, time)
    heartbeat.keep([hold])
    setattr(hold, state, True)

    time.now += LEASE_SECONDS + 1

    assert not heartbeat.behind()


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
    # Looked at for the tick, before and after the beat, then just before asking; not after the answer.
    assert hold.renewed_at == asked_after + 4
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


def stall(beating: Heartbeat, time: Time, seconds: float) -> None:
    """The whole process stands still; its watching thread is the first to run again."""
    beating.watch()
    time.now += seconds
    beating.watch()


def test_after_a_stall_the_database_is_asked_before_anything_is_let_go(
    queue: Driver, heartbeat: Heartbeat, time: Time
) -> None:
    hold = hold_of(queue, time)
    heartbeat.keep([hold])

    stall(heartbeat, time, LEASE_SECONDS + 5)
    assert hold.lost is None

    heartbeat.tick()
    assert hold.lost is None
    assert renewals(queue, hold) == 1


def test_after_a_stall_what_was_taken_meanwhile_is_lost(queue: Driver, heartbeat: Heartbeat, time: Time) -> None:
    hold = hold_of(queue, time)
    heartbeat.keep([hold])

    stall(heartbeat, time, LEASE_SECONDS + 5)
    queue.release(hold.lease)
    heartbeat.tick()

    assert (hold.lost, hold.distrusted) == ("lease_lost", False)


def test_after_a_stall_a_database_that_does_not_answer_is_not_waited_for(queue: Driver, time: Time) -> None:
    cut_off = heartbeat_on(NOWHERE, time)
    hold = hold_of(queue, time)
    cut_off.keep([hold])

    stall(cut_off, time, LEASE_SECONDS + 5)
    wait = cut_off.tick()
    lost_at_once = hold.lost
    for _ in range(8):
        time.now += 0.5
        cut_off.watch()

    assert wait > 0.1  # it does not spin meanwhile
    assert (lost_at_once, hold.lost, hold.distrusted) == (None, "lease_expired", True)


def test_a_lease_is_let_go_in_time_while_a_beat_hangs(dsn: str, queue: Driver, sessions: Sessions) -> None:
    queue.enqueue(lease_seconds=1)
    lease = queue.claim_one()
    blocker = sessions.open()
    blocker.begin()
    blocker.connection.execute("lock table faultline.workers in access exclusive mode")  # a beat waits for it, 10 s at most

    async def story() -> float:
        beating = Heartbeat(dsn, "w", ["default"], Host(), Tally(monotonic))
        hold = HeldLease(lease, monotonic(), Tally(monotonic).of("default"))
        beating.keep([hold])
        begun = monotonic()
        beating.start()
        await auntil(lambda: hold.lost is not None)
        took = monotonic() - begun
        blocker.rollback()
        await beating.stop()
        return took

    assert 0.9 < asyncio.run(story()) < 9


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


def test_a_job_that_completed_itself_is_not_renewed_any_more(queue: Driver, heartbeat: Heartbeat, time: Time) -> None:
    hold = hold_of(queue, time)
    heartbeat.keep([hold])
    queue.complete(hold.lease)

    time.now += 11
    heartbeat.tick()
    hold.completed = True
    time.now += 11
    heartbeat.tick()

    assert hold.lost is None
    assert queue.refusals(hold.lease.job_id) == []


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


def test_a_thread_that_hangs_does_not_hold_up_the_end() -> None:
    hangs = threading.Event()

    async def story() -> None:
        thread = Thread(lambda: float(hangs.wait(PATIENCE)), lambda: None, stop_seconds=0.05)
        thread.start()
        with pytest.raises(TimeoutError, match=r"did not end within 0\.05 s"):
            await asyncio.wait_for(thread.stop(lambda: None), PATIENCE)

    asyncio.run(story())
    hangs.set()


def test_a_beat_without_an_answer_is_given_up_long_before_the_leases_run_out(queue: Driver, dsn: str) -> None:
    """As after the loss of a primary: its host says nothing any more, and another one is being promoted."""
    beating = Heartbeat(dsn, "w", ["default"], Host(pulse=ByHand), Tally(monotonic))
    queue.enqueue(lease_seconds=LEASE_SECONDS)
    hold = HeldLease(queue.claim_one(), monotonic(), Tally(monotonic).of("default"))
    beating.keep([hold])
    beating.tick()
    pid = session_of(queue)
    os.kill(pid, signal.SIGSTOP)
    try:
        beating.sleep_on(frozenset({"default"}))

        began = monotonic()
        beating.tick()
        gave_up_after = monotonic() - began
        beating.tick()
    finally:
        os.kill(pid, signal.SIGCONT)
    asyncio.run(beating.stop())

    assert gave_up_after < LEASE_SECONDS / 3
    assert beating.reconnects == 1
    assert hold.lost is None


def test_a_beat_that_waits_for_a_lock_does_not_cost_the_session(queue: Driver, sessions: Sessions, dsn: str) -> None:
    """With the session the advisory lock would go, and others would take the worker for dead."""
    beating = Heartbeat(dsn, "w", ["default"], Host(pulse=ByHand), Tally(monotonic))
    beating.tick()
    pid = session_of(queue)
    other = sessions.open().connection
    other.execute("begin")
    other.execute("lock table faultline.workers in access exclusive mode")

    beating.sleep_on(frozenset({"default"}))
    beating.tick()
    other.execute("rollback")
    beating.tick()
    same = session_of(queue)
    asyncio.run(beating.stop())

    assert same == pid
    assert beating.reconnects == 0
