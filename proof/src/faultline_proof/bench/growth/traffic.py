"""What jobs that come one by one cost: with more clients at once, more listeners, more workers that wait for them."""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from typing import TYPE_CHECKING, Any

from faultline.app.application import Faultline
from faultline.core.model import Submission
from faultline.store import verbs
from faultline.store.database import Database, run_on
from faultline.store.reads import views
from faultline_proof.bench.growth.points import points
from faultline_proof.bench.processes import wait_for, worker_process
from faultline_proof.bench.protocol import ARGS
from faultline_proof.bench.report import Curve
from faultline_proof.bench.system import family_cpu_seconds, server_cpu_seconds

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.synchronize import Barrier

    from faultline_proof.bench.growth.points import Effort
    from faultline_proof.bench.report import Point

_PATIENCE_SECONDS = 120.0
_SETTLING_SECONDS = 2.0
_TRICKLE_PER_SECOND = 50


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
                run_on(sleeper, verbs.heartbeat(f"sleeper-{number}", watched=False, **words))  # type: ignore[arg-type]
            before = server_cpu_seconds(connection.info.backend_pid)
            done = _enqueued(dsn, 1, seconds)
            used = server_cpu_seconds(connection.info.backend_pid) - before
            for number in range(at):
                run_on(connection, verbs.unregister_worker(f"sleeper-{number}"))
        return {"value": used / done * 1e6, "jobs_per_second": done / seconds}

    found = points(effort.small((0, 10, 100)), measure)
    return [Curve("single enqueue, by sleeping listeners", "listeners", "µs CPU/job", found)]


def waiting_workers(dsn: str, effort: Effort) -> list[Curve]:
    """Jobs that trickle in, over worker processes that wait for them"""
    seconds = 2.0 if effort.quick else 6.0

    def measure(at: int) -> Point:
        words = ("--queue", "trickle=50", "--processes", str(at))
        with Faultline(dsn) as app, app.database.connect() as connection, worker_process(dsn, *words) as process:
            wait_for(lambda: len(app.database.run(views.workers())) == at)
            time.sleep(_SETTLING_SECONDS)
            backend = connection.info.backend_pid
            idle = _used(backend, process.pid, lambda: time.sleep(seconds))
            busy = _used(backend, process.pid, lambda: _trickle(app, seconds))
        jobs = seconds * _TRICKLE_PER_SECOND
        return {
            "value": (busy[0] - idle[0]) / jobs * 1e6,
            "workers_cpu_micros": (busy[1] - idle[1]) / jobs * 1e6,
            "idle_server_cpu_percent": idle[0] / seconds * 100,
            "idle_workers_cpu_percent": idle[1] / seconds * 100,
        }

    found = points(effort.small((1, 4, 16)), measure)
    return [Curve(f"{_TRICKLE_PER_SECOND} jobs/s, by workers that wait", "worker processes", "µs CPU/job", found)]


def _used(backend: int, parent: int, call: Callable[[], None]) -> tuple[float, float]:
    """What the server, and a process with all its children, used meanwhile."""
    before = (server_cpu_seconds(backend), family_cpu_seconds(parent))
    call()
    return server_cpu_seconds(backend) - before[0], family_cpu_seconds(parent) - before[1]


def _trickle(app: Faultline, seconds: float) -> None:
    begun = time.monotonic()
    for number in range(int(seconds * _TRICKLE_PER_SECOND)):
        time.sleep(max(0.0, begun + number / _TRICKLE_PER_SECOND - time.monotonic()))
        app.enqueue_many([Submission("nothing", ARGS, queue="trickle")])


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


CURVES = (clients, listeners, waiting_workers)
