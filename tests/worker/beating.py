"""A heartbeat that beats when the test says so, by a clock that the test moves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from faultline.core.host import Host
from faultline.worker.base.counters import Tally
from faultline.worker.lease.heartbeat import Heartbeat
from faultline.worker.lease.held_lease import HeldLease

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.driver import Driver


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


def heartbeat_on(dsn: str, time: Time) -> Heartbeat:
    return Heartbeat(dsn, "w", ["default"], Host(monotonic=time, pulse=ByHand), Tally(time))


def hold_of(queue: Driver, time: Time) -> HeldLease:
    queue.enqueue(lease_seconds=LEASE_SECONDS)
    return HeldLease(queue.claim_one(), time.now, Tally(time).of("default"))


def renewals(queue: Driver, hold: HeldLease) -> Any:
    return queue.job(hold.lease.job_id).renewals


def session_of(queue: Driver) -> int:
    """The server's process behind the heartbeat's session: the one that holds its lock."""
    pid = queue.value(
        "select pid from pg_locks join pg_database d on d.oid = database"
        " where datname = current_database() and locktype = 'advisory' and pid <> pg_backend_pid()"
    )
    assert isinstance(pid, int)
    return pid
