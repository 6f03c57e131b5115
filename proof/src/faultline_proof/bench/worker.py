"""What the worker makes of the protocol: throughput against the bare loop, latency, recovery after a kill, idle cost.

Everything is on: ledger, fences, journal, heartbeats. Real worker processes, in a scratch database.
"""

from __future__ import annotations

import os
import signal
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from faultline.app.application import Faultline
from faultline.core.model import Submission
from faultline.store import scratch
from faultline.store.database import Database
from faultline.store.reads import views
from faultline_proof.bench.processes import wait_for, worker_process
from faultline_proof.bench.protocol import Figure, drain
from faultline_proof.bench.system import cpu_seconds, memory_megabytes

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime
    from uuid import UUID

    from faultline.app.handle import JobHandle

_NOTHING = "nothing"
_WAIT = "wait"
_STAMP = "stamp"
_READY_SECONDS = 1.0
_ENQUEUED_PER_SECOND = 15_000


@dataclass(frozen=True, slots=True)
class Effort:
    """How much of everything is done: jobs in a drain, rounds of it, workers killed."""

    jobs: int = 60_000
    rounds: int = 5
    kills: int = 20


def measure(dsn: str, *, effort: Effort | None = None, tell: Callable[[str], None] = print) -> list[Figure]:
    """Measure everything and give the figures, each with its goal. What is compared is measured in turns."""
    figures: list[Figure] = []
    for part in (_throughput, _latency, _urgent, _waiting, _recovery, _idle):
        tell(f"measuring: {(part.__doc__ or '').splitlines()[0]}")
        with scratch.database(dsn) as scratch_dsn:
            figures += part(scratch_dsn, effort or Effort())
    return figures


def _throughput(dsn: str, effort: Effort) -> list[Figure]:
    """No-op jobs through one and two worker processes, beside the bare loop on one and two connections"""
    figures = []
    for count, connections, processes, goal in (
        (1, "one connection", "one worker process", 55),
        (2, "two connections", "two worker processes", 75),
    ):
        pairs = [
            (bare_rate(dsn, effort.jobs, count), _worker_rate(dsn, effort.jobs, count, turn))
            for turn in range(effort.rounds)
        ]
        share = statistics.median(100 * worker / bare for bare, worker in pairs)
        figures += [
            Figure(f"bare claim + complete, {connections}", statistics.median(bare for bare, _ in pairs), "jobs/s"),
            Figure(f"no-op jobs, {processes}", statistics.median(worker for _, worker in pairs), "jobs/s"),
            Figure(f"{processes}, share of the bare loop", share, "%", f"at least {goal}", share >= goal),
        ]
    return figures


def bare_rate(dsn: str, jobs: int, connections: int) -> float:
    with Faultline(dsn) as app:
        app.enqueue_many(Submission(_NOTHING, queue="bench") for _ in range(jobs))

        def loop(_: int) -> int:
            with Database(dsn).connect() as connection:
                return drain(connection, jobs // connections).jobs

        begun = time.perf_counter()
        with ThreadPoolExecutor(connections) as threads:
            done = sum(threads.map(loop, range(connections)))
        return done / (time.perf_counter() - begun)


def _worker_rate(dsn: str, jobs: int, processes: int, turn: int = 0) -> float:
    return drained_rate(dsn, [Submission(_NOTHING, queue=f"workers-{processes}-{turn}")] * jobs, 100, processes)


def drained_rate(dsn: str, submissions: list[Submission], concurrency: int, processes: int = 1) -> float:
    """From the first to the last job, by the database's clock. All jobs fall due at once, before workers that are up.

    Whoever has enqueued them rests by then: it would take its share of the cores, which the bare loop has for itself.
    """
    queue = str(submissions[0].queue)
    words = ("--queue", f"{queue}={concurrency}", "--processes", str(processes))
    with Faultline(dsn) as app, worker_process(dsn, *words):
        wait_for(lambda: len(app.database.run(views.workers())) == processes)
        seconds = _READY_SECONDS + len(submissions) / _ENQUEUED_PER_SECOND
        due_at = app.database.run(views.clock()) + timedelta(seconds=seconds)
        # Like those of the bare loop, they were not all made in the same microsecond.
        times = (due_at - timedelta(microseconds=n) for n in range(len(submissions), 0, -1))
        app.enqueue_many([replace(job, run_at=at) for job, at in zip(submissions, times, strict=True)])
        time.sleep(max(0.0, (due_at - app.database.run(views.clock())).total_seconds()))
        wait_for(lambda: app.database.run(views.is_drained(queue)), 300, pause=0.25)
        begun, ended = app.database.run(views.span(queue))
        return len(submissions) / (ended - begun).total_seconds()


def _latency(dsn: str, _: Effort) -> list[Figure]:
    """From enqueue to start on an idle system"""
    with Faultline(dsn) as app, worker_process(dsn, "--queue", "default=50"):
        wait_for(lambda: bool(app.database.run(views.workers())))
        handles = []
        for _n in range(300):
            handles += app.enqueue_many([Submission(_STAMP)])
            time.sleep(0.01)
        waits = sorted(_wait_of(app, handle) for handle in handles)
    p50, p99 = statistics.median(waits), waits[int(len(waits) * 0.99)]
    return [
        Figure("enqueue to start, p50", p50, "ms", "under 5", p50 < 5),
        Figure("enqueue to start, p99", p99, "ms", "under 25", p99 < 25),
    ]


def _urgent(dsn: str, _: Effort) -> list[Figure]:
    """An urgent job behind 100,000 others"""
    with Faultline(dsn) as app:
        app.enqueue_many(Submission(_NOTHING) for _ in range(100_000))
        with worker_process(dsn, "--queue", "default=50"):
            wait_for(lambda: app.database.run(views.counts())["succeeded"] > 5000)
            urgent = []
            for _n in range(10):
                urgent += app.enqueue_many([Submission(_STAMP, priority=-10)])
                time.sleep(0.05)
            waits = [_wait_of(app, handle) for handle in urgent]
        worst = max(waits)
    return [Figure("urgent job behind 100,000 others, worst of 10", worst, "ms", "under 50", worst < 50)]


def _waiting(dsn: str, effort: Effort) -> list[Figure]:
    """Jobs of 10 ms I/O at concurrency 100 and 500"""
    figures = []
    for concurrency, ideal in ((100, 10_000), (500, 50_000)):
        pairs = []
        for turn in range(effort.rounds):
            job = Submission(_WAIT, '{"seconds": 0.01}', queue=f"io-{concurrency}-{turn}")
            rate = drained_rate(dsn, [job] * min(effort.jobs, 4 * ideal), concurrency)
            pairs.append((rate, min(ideal, bare_rate(dsn, effort.jobs, 1))))
        share = statistics.median(100 * rate / best for rate, best in pairs)
        name = f"10 ms I/O jobs at concurrency {concurrency}, one process"
        figures += [
            Figure(name, statistics.median(rate for rate, _ in pairs), "jobs/s"),
            # Nothing can be faster than the calls that it is made of.
            Figure(f"the same, share of {ideal:,}/s or the bare loop if less", share, "%", "at least 85", share >= 85),
        ]
    return figures


def _recovery(dsn: str, effort: Effort) -> list[Figure]:
    """From kill -9 to running again, at default settings"""
    seconds = []
    with Faultline(dsn) as app, worker_process(dsn, "--queue", "default=2"):
        time.sleep(4)  # the survivor has settled in, as it would have in production
        for _ in range(effort.kills):
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
        Figure(f"kill -9 to running again, worst of {effort.kills} kills", worst, "s", "under 6", worst < 6),
    ]


def _idle(dsn: str, _: Effort) -> list[Figure]:
    """An idle worker: CPU, memory, and the time it takes to stop"""
    with Faultline(dsn) as app, worker_process(dsn, "--queue", "default=50") as process:
        wait_for(lambda: bool(app.database.run(views.workers())))
        time.sleep(2)
        cpu, begun = cpu_seconds(process.pid), time.monotonic()
        time.sleep(5)
        share = 100 * (cpu_seconds(process.pid) - cpu) / (time.monotonic() - begun)
        memory = memory_megabytes(process.pid)
        asked = time.monotonic()
        process.terminate()
        process.wait(30)
        stop = time.monotonic() - asked
    return [
        Figure("idle worker, CPU", share, "%", "under 1", share < 1),
        Figure("idle worker, memory", memory, "MB", "under 90", memory < 90),
        Figure("SIGTERM to exit, idle", stop, "s", "under 1", stop < 1),
    ]


def _wait_of(app: Faultline, handle: JobHandle[Any]) -> float:
    """Milliseconds from the submission to the task's first line, both on this machine's clock."""
    started_at: float = handle.result(60)
    return (started_at - app.job(handle.id).created_at.timestamp()) * 1000


def _seconds_until_run_again(app: Faultline, job_id: UUID, killed_at: datetime) -> float:
    job = app.job(job_id)
    return (job.claimed_at - killed_at).total_seconds() if job.claimed_at is not None and job.fencing_token > 1 else 0.0
