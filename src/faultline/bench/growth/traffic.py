"""What an enqueue costs with more clients at once, and with more workers that sleep and want to be woken by it."""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from typing import TYPE_CHECKING, Any

from faultline.bench.growth.points import points
from faultline.bench.protocol import ARGS
from faultline.bench.report import Curve
from faultline.bench.system import server_cpu_seconds
from faultline.core.model import Submission
from faultline.runtime.client import Faultline
from faultline.store import queue
from faultline.store.database import Database, run_on

if TYPE_CHECKING:
    from multiprocessing.synchronize import Barrier

    from faultline.bench.growth.points import Effort
    from faultline.bench.report import Point

_PATIENCE_SECONDS = 120.0


def clients(dsn: str, effort: Effort) -> list[Curve]:
    """Single enqueues over clients that send them at once"""
    seconds = 1.0 if effort.quick else 4.0

    def measure(at: int) -> Point:
        with Database(dsn).connect() as connection:
            before = server_cpu_seconds(connection.info.backend_pid)
            done = _enqueued(dsn, at, seconds)
            used = server_cpu_seconds(connection.info.backend_pid) - before
        return {"value": done / seconds, "server_cpu_micros": used / done * 1e6}

    return [Curve("single enqueues, by clients", "clients", "jobs/s", points(effort.small((1, 2, 4, 8)), measure))]


def listeners(dsn: str, effort: Effort) -> list[Curve]:
    """Single enqueues over sleeping workers, each of which is woken by every one"""
    seconds = 1.0 if effort.quick else 4.0

    def measure(at: int) -> Point:
        with contextlib.ExitStack() as stack:
            connection = stack.enter_context(Database(dsn).connect())
            for number in range(at):
                sleeper = stack.enter_context(Database(dsn).connect())
                sleeper.execute("listen faultline")
                words = {"host": "h", "pid": number, "version": "0", "queues": ["clients"], "sleeping": ["clients"]}
                run_on(sleeper, queue.beat(f"sleeper-{number}", watched=False, **words))  # type: ignore[arg-type]
            before = server_cpu_seconds(connection.info.backend_pid)
            done = _enqueued(dsn, 1, seconds)
            used = server_cpu_seconds(connection.info.backend_pid) - before
            for number in range(at):
                run_on(connection, queue.leave(f"sleeper-{number}"))
        return {"value": used / done * 1e6, "jobs_per_second": done / seconds}

    found = points(effort.small((0, 10, 100)), measure)
    return [Curve("single enqueue, by sleeping listeners", "listeners", "µs CPU/job", found)]


def _enqueued(dsn: str, clients: int, seconds: float) -> int:
    """How many jobs so many processes put into one queue in that time, one by one."""
    context = multiprocessing.get_context("spawn")
    barrier, answers = context.Barrier(clients), context.Queue()
    children = [context.Process(target=_client, args=(dsn, seconds, barrier, answers), daemon=True) for _ in range(clients)]
    for child in children:
        child.start()
    try:
        return sum(int(answers.get(timeout=_PATIENCE_SECONDS)) for _ in children)
    finally:
        for child in children:
            child.join(5)
            child.kill()


def _client(dsn: str, seconds: float, barrier: Barrier, answers: Any) -> None:
    done, job = 0, [Submission("nothing", ARGS, queue="clients")]
    try:
        with Faultline(dsn) as app:
            app.enqueue_many(job)
            barrier.wait(_PATIENCE_SECONDS)
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                app.enqueue_many(job)
                done += 1
    finally:
        answers.put(done)


CURVES = (clients, listeners)
