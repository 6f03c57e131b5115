"""What flows cost: children beside plain jobs, a signal until the program runs again, steps, and jobs that only wait.

Real worker processes, in scratch databases. What is compared is measured in turns in one run.
"""

from __future__ import annotations

import os
import signal
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from faultline.app.application import Faultline
from faultline.core.model import Submission
from faultline.store import scratch, verbs
from faultline.store.database import Database, run_on
from faultline.store.reads import views
from faultline_proof.bench.processes import wait_for, worker_process
from faultline_proof.bench.protocol import Figure
from faultline_proof.bench.report import Report, machine
from faultline_proof.bench.system import thread_cpu_seconds
from faultline_proof.reads import proving
from faultline_proof.tasks import register_flows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import psycopg

_QUEUE = "--queue", "default=100"
_PATIENCE = 300.0


@dataclass(frozen=True, slots=True)
class Effort:
    children: int = 10_000
    rounds: int = 5
    signals: int = 200
    flows: int = 2_000
    suspended: int = 1_000_000


QUICK = Effort(children=2_000, rounds=2, signals=40, flows=300, suspended=50_000)


def measure(dsn: str, *, effort: Effort | None = None, quick: bool = False, tell: Callable[[str], None] = print) -> Report:
    effort = effort or (QUICK if quick else Effort())
    with Database(dsn).connect() as connection:
        report = Report("flows", machine(connection), quick=quick)
    for part in (_children, _signals, _steps, _suspended, _killed):
        tell(f"measuring: {(part.__doc__ or '').splitlines()[0]}")
        with scratch.database(dsn) as scratch_dsn:
            report.figures += part(scratch_dsn, effort)
    return report


def _children(dsn: str, effort: Effort) -> list[Figure]:
    """A map over no-op children, beside as many plain jobs"""
    pairs, thousand = [], []
    with Faultline(dsn) as app, worker_process(dsn, *_QUEUE):
        register_flows(app)
        child, parent = app.tasks["one_of_many"], app.tasks["fan_out"]
        wait_for(lambda: bool(app.database.run(views.workers())))
        for _ in range(effort.rounds):
            pairs.append(
                (
                    _seconds_of(app, (child.bind(n) for n in range(effort.children))),
                    _seconds_of(app, [parent.bind(effort.children)]),
                )
            )
            thousand.append(_seconds_of(app, [parent.bind(1000)]))
    ratio = statistics.median(mapped / plain for plain, mapped in pairs)
    count = f"{effort.children:,}"
    return [
        Figure(f"{count} plain jobs, enqueue to drained", statistics.median(plain for plain, _ in pairs), "s"),
        Figure(f"map over {count} no-op children", statistics.median(mapped for _, mapped in pairs), "s"),
        Figure("the same, times the plain jobs", ratio, "x", "at most 1.3", ratio <= 1.3),
        Figure("map over 1,000 no-op children", statistics.median(thousand), "s"),
    ]


def _signals(dsn: str, effort: Effort) -> list[Figure]:
    """From a signal to the program running again"""
    waits = []
    with Faultline(dsn) as app, worker_process(dsn, *_QUEUE):
        wait_for(lambda: bool(app.database.run(views.workers())))
        for _ in range(effort.signals):
            (handle,) = app.enqueue_many([Submission("answer")])
            wait_for(lambda job=handle.id: bool(app.job(job).suspended), pause=0.005)  # type: ignore[misc]
            sent_at = time.time()
            app.signal(handle.id, "go")
            received_at: float = handle.result(60)
            waits.append((received_at - sent_at) * 1000)
    p50, p99 = statistics.median(waits), sorted(waits)[int(len(waits) * 0.99)]
    return [
        Figure("signal to running again, p50", p50, "ms", "under 15", p50 < 15),
        Figure("signal to running again, p99", p99, "ms"),
    ]


def _steps(dsn: str, effort: Effort) -> list[Figure]:
    """Flows of ten recorded steps, and flows that wait for one child"""
    with Faultline(dsn) as app, worker_process(dsn, *_QUEUE):
        wait_for(lambda: bool(app.database.run(views.workers())))
        rates = {}
        for task in ("ten_steps", "one_child"):
            begun = time.perf_counter()
            app.enqueue_many(Submission(task) for _ in range(effort.flows))
            wait_for(lambda: app.database.run(views.is_drained("default")), _PATIENCE, pause=0.01)
            rates[task] = effort.flows / (time.perf_counter() - begun)
    return [
        Figure("recorded steps, one worker process", rates["ten_steps"] * 10, "steps/s"),
        Figure("flows that wait for one child, one worker process", rates["one_child"], "flows/s"),
    ]


def _suspended(dsn: str, effort: Effort) -> list[Figure]:
    """Claims beside jobs that only wait"""
    with scratch.database(dsn) as empty, Database(empty).connect() as alone, Database(dsn).connect() as beside:
        run_on(beside, proving.fill_suspended(effort.suspended, task="nothing"))
        for connection in (alone, beside):
            run_on(connection, proving.fill(20_000, task="nothing"))
            connection.execute("vacuum analyze faultline.open_jobs")
            # Filling leaves pages to be written, and the claims that find no room in memory would write them.
            connection.execute("checkpoint")
            _claims_micros(connection, "warm")
        # In turns: what the machine does besides falls on both.
        pairs = [(_claims_micros(alone, f"alone {n}"), _claims_micros(beside, f"beside {n}")) for n in range(12)]
    change = 100 * (statistics.median(more / less for less, more in pairs) - 1)
    return [
        Figure("claim of 100 due jobs, CPU of PostgreSQL", statistics.median(less for less, _ in pairs), "µs/job"),
        Figure(
            f"the same beside {effort.suspended:,} jobs that wait", statistics.median(more for _, more in pairs), "µs/job"
        ),
        Figure("the change", change, "%", "under 5", change < 5),
    ]


def _claims_micros(connection: psycopg.Connection, owner: str) -> float:
    backend = connection.info.backend_pid
    run_on(connection, verbs.claim("default", owner=f"{owner}/0", max_jobs=100))  # plans
    before, claimed = thread_cpu_seconds(backend), 0
    for number in range(1, 11):
        claimed += len(run_on(connection, verbs.claim("default", owner=f"{owner}/{number}", max_jobs=100)))
    return (thread_cpu_seconds(backend) - before) / claimed * 1e6


def _killed(dsn: str, effort: Effort) -> list[Figure]:
    """From kill -9 of the worker that runs a flow to the flow running again"""
    seconds = []
    with Faultline(dsn) as app, worker_process(dsn, "--queue", "default=2"):
        time.sleep(4)  # the survivor has settled in, as it would have in production
        for _ in range(effort.rounds * 2):
            with worker_process(dsn, "--queue", "default=2") as victim:
                wait_for(lambda: len(app.database.run(views.workers())) > 1)
                handles = app.enqueue_many(Submission("step_and_dawdle", '{"seconds": 2}') for _ in range(4))
                wait_for(lambda pid=victim.pid: bool(app.database.run(views.held_by(pid))))  # type: ignore[misc]
                held = app.database.run(views.held_by(victim.pid))
                os.kill(victim.pid, signal.SIGKILL)
                killed_at = time.time()
                resumed = {handle.id: handle.result(60) for handle in handles}
            seconds += [at - killed_at for job_id, at in resumed.items() if job_id in held and at > killed_at]
    p50 = statistics.median(seconds)
    return [Figure("kill -9 to the flow running again, p50", p50, "s", "under 4", p50 < 4)]


def _seconds_of(app: Faultline, jobs: Iterable[Submission]) -> float:
    """From before they are made until all that came of them is done."""
    begun = time.perf_counter()
    app.enqueue_many(jobs)
    wait_for(lambda: app.database.run(views.is_drained("default")), _PATIENCE, pause=0.01)
    return time.perf_counter() - begun
