"""A worker as the database sees it: its heartbeats, its lock, its death, and the server under it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from faultline.store import verbs

if TYPE_CHECKING:
    from tests.driver import Clock, Driver


def crash_and_reap(queue: Driver, clock: Clock) -> None:
    clock.advance(31)
    queue.reap()


def beat(queue: Driver, *, watched: bool = True, worker: str = "w") -> None:
    queue.run(verbs.beat(worker, host="host", pid=1, version="0", queues=["default"], sleeping=[], watched=watched))


def hold_lock(queue: Driver, worker: str = "w") -> None:
    queue.connection.execute("select pg_advisory_lock(faultline.worker_lock(%s))", (worker,))


def replace_server(queue: Driver) -> None:
    """As after a restart or a promotion: the name of the run in the table is that of another one, and no lock is held."""
    queue.connection.execute("update faultline.settings set server_run = 'that of another server'")
