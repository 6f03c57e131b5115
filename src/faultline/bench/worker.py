"""What the worker makes of the protocol: throughput against the bare loop, latency, recovery after a kill, idle cost.

Everything is on: ledger, fences, journal, heartbeats. Real worker processes, in a scratch database.
"""

from __future__ import annotations

import os
import signal
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from faultline.bench.protocol import Figure, cpu_seconds, drain
from faultline.core.model import Submission
from faultline.proof.crash import wait_for, worker_process
from faultline.runtime.client import Faultline
from faultline.store import scratch, views
from faultline.store.database import Database

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime
    from uuid import UUID

_NOTHING = "nothing"
_WAIT = "wait"


def measure(dsn: str, *, jobs: int = 60_000, trials: int = 5, tell: Callable[[str], None] = print) -> list[Figure]:
    """Measure everything and give the figures, each with its goal."""
    figures: list[Figure] = []
    for part in (_throughput, _latency, _urgent, _waiting, _recovery, _idle):
        tell(f"measuring: {(part.__doc__ or '').splitlines()[0]}")
        with scratch.database(dsn) as scratch_dsn:
            figures += part(scratch_dsn, jobs, trials)
    return figures


def _throughput(dsn: str, jobs: int, _: int) -> list[Figure]:
    """no-op jobs through one and two worker processes, beside the bare loop on one and two connections"""
    bare = [_bare_rate(dsn, jobs, connections) for connections in (1, 2)]
    worker = [_worker_rate(dsn, jobs, processes) for processes in (1, 2)]
    shares = [100 * w / b for w, b in zip(worker, bare, strict=True)]
    return [
        Figure("bare claim + complete, one connection", bare[0], "jobs/s"),
        Figure("bare claim + complete, two connections", bare[1], "jobs/s"),
        Figure("no-op jobs, one worker process", worker[0], "jobs/s"),
        Figure("no-op jobs, two worker processes", worker[1], "jobs/s"),
        Figure("one process, share of the bare loop", shares[0], "%", "at least 55", shares[0] >= 55),
        Figure("two processes, share of the bare loop", shares[1], "%", "at least 75", shares[1] >= 75),
    ]


def _bare_rate(dsn: str, jobs: int, connections: int) -> float:
    with Faultline(dsn) as app:
        app.enqueue_many(Submission(_NOTHING, queue="bench") for _ in range(jobs))

        def loop(_: int) -> int:
            with Database(dsn).connect() as connection:
                return drain(connection, jobs // connections).jobs

        begun = time.perf_counter()
        with ThreadPoolExecutor(connections) as threads:
            done = sum(threads.map(loop, range(connections)))
        return done / (time.perf_counter() - begun)


def _worker_rate(dsn: str, jobs: int, processes: int) -> float:
    """From the first to the last job, by the database's clock: the start of the processes is not what is measured."""
    queue = f"workers-{processes}"
    with Faultline(dsn) as app:
        app.enqueue_many(Submission(_NOTHING, queue=queue) for _ in range(jobs))
        words = ("--queue", f"{queue}=100", "--processes", str(processes))
        with worker_process(dsn, *words):
            wait_for(lambda: app.database.run(views.is_drained(queue)), 300, pause=0.25)
        begun, ended = app.database.run(views.span(queue))
        return jobs / (ended - begun).total_seconds()


def _latency(dsn: str, _: int, __: int) -> list[Figure]:
    """From enqueue to start on an idle system"""
    with Faultline(dsn) as app, worker_process(dsn, "--queue", "default=50"):
        wait_for(lambda: bool(app.database.run(views.workers())))
        handles = []
        for _ in range(300):
            handles.append(app.enqueue_many([Submission(_NOTHING)])[0])
            time.sleep(0.01)
        wait_for(lambda: app.database.run(views.counts())["succeeded"] == len(handles))
        waits = sorted(_wait_of(app, handle.id) * 1000 for handle in handles)
    p50, p99 = statistics.median(waits), waits[int(len(waits) * 0.99)]
    return [
        Figure("enqueue to claim, p50", p50, "ms", "under 5", p50 < 5),
        Figure("enqueue to claim, p99", p99, "ms", "under 25", p99 < 25),
    ]


def _urgent(dsn: str, _: int, __: int) -> list[Figure]:
    """An urgent job behind 100,000 others"""
    with Faultline(dsn) as app:
        app.enqueue_many(Submission(_NOTHING) for _ in range(100_000))
        with worker_process(dsn, "--queue", "default=50"):
            wait_for(lambda: app.database.run(views.counts())["succeeded"] > 5000)
            urgent = [app.enqueue_many([Submission(_NOTHING, priority=-10)])[0] for _ in range(10)]
            wait_for(lambda: all(app.job(handle.id).claimed_at is not None for handle in urgent))
        worst = max(_wait_of(app, handle.id) * 1000 for handle in urgent)
    return [Figure("urgent job behind 100,000 others, worst of 10", worst, "ms", "under 50", worst < 50)]


def _waiting(dsn: str, jobs: int, _: int) -> list[Figure]:
    """Jobs of 10 ms I/O at concurrency 500"""
    with Faultline(dsn) as app:
        app.enqueue_many(Submission(_WAIT, '{"seconds": 0.01}', queue="io") for _ in range(jobs))
        with worker_process(dsn, "--queue", "io=500"):
            wait_for(lambda: app.database.run(views.is_drained("io")), 300, pause=0.25)
        begun, ended = app.database.run(views.span("io"))
    rate = jobs / (ended - begun).total_seconds()
    return [Figure("10 ms I/O jobs at concurrency 500, one process", rate, "jobs/s")]


def _recovery(dsn: str, _: int, trials: int) -> list[Figure]:
    """From kill -9 to running again, at default settings"""
    seconds = []
    with Faultline(dsn) as app, worker_process(dsn, "--queue", "default=2"):
        time.sleep(4)  # the survivor has settled in, as it would have in production
        for _ in range(trials):
            with worker_process(dsn, "--queue", "default=2") as victim:
                wait_for(lambda: len(app.database.run(views.workers())) > 1)
                handles = app.enqueue_many(Submission(_WAIT, '{"seconds": 0.5}') for _ in range(8))
                wait_for(lambda pid=victim.pid: bool(app.database.run(views.held_by(pid))))  # type: ignore[misc]
                held = app.database.run(views.held_by(victim.pid))
                os.kill(victim.pid, signal.SIGKILL)
                killed_at = app.database.run(views.clock())
                wait_for(lambda: all(app.job(handle.id).state.ended for handle in handles))  # noqa: B023
            seconds += [_seconds_until_run_again(app, job_id, killed_at) for job_id in held]
    again = [found for found in seconds if found > 0]
    p50, worst = statistics.median(again), max(again)
    return [
        Figure("kill -9 to running again, p50", p50, "s", "under 4", p50 < 4),
        Figure(f"kill -9 to running again, worst of {trials} kills", worst, "s", "under 6", worst < 6),
    ]


def _idle(dsn: str, _: int, __: int) -> list[Figure]:
    """An idle worker: CPU, memory, and the time it takes to stop"""
    with Faultline(dsn) as app, worker_process(dsn, "--queue", "default=50") as process:
        wait_for(lambda: bool(app.database.run(views.workers())))
        time.sleep(2)
        cpu, begun = cpu_seconds(process.pid), time.monotonic()
        time.sleep(5)
        share = 100 * (cpu_seconds(process.pid) - cpu) / (time.monotonic() - begun)
        memory = _memory_megabytes(process.pid)
        asked = time.monotonic()
        process.terminate()
        process.wait(30)
        stop = time.monotonic() - asked
    return [
        Figure("idle worker, CPU", share, "%", "under 1", share < 1),
        Figure("idle worker, memory", memory, "MB", "under 90", memory < 90),
        Figure("SIGTERM to exit, idle", stop, "s", "under 1", stop < 1),
    ]


def _wait_of(app: Faultline, job_id: UUID) -> float:
    job = app.job(job_id)
    assert job.claimed_at is not None  # noqa: S101 - it has run
    return (job.claimed_at - job.created_at).total_seconds()


def _seconds_until_run_again(app: Faultline, job_id: UUID, killed_at: datetime) -> float:
    job = app.job(job_id)
    return (job.claimed_at - killed_at).total_seconds() if job.claimed_at is not None and job.fencing_token > 1 else 0.0


def _memory_megabytes(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
