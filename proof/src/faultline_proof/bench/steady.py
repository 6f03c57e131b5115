"""A steady load for an hour, looked at every minute: what grows although the load does not?

One worker process, one enqueuing client, retention on. The second quarter of the run is compared with the last: the first
is for filling what retention lets stand. What is found is in the shape of `report`, one curve for each thing that is
watched and one figure for how it has grown.
"""

from __future__ import annotations

import contextlib
import os
import random
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from faultline.app.application import Faultline
from faultline.app.job import Job  # noqa: TC001 - looked at when the task is registered
from faultline.core.model import Retention, Submission
from faultline.store import scratch
from faultline.store.reads import views
from faultline.store.reads.health import health
from faultline_proof.bench.processes import ended_with, wait_for
from faultline_proof.bench.protocol import ARGS, Figure
from faultline_proof.bench.report import Curve, Point, Report, machine
from faultline_proof.bench.system import cpu_seconds, memory_megabytes, server_cpu_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_QUEUE = "steady"
_TICK_SECONDS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    minutes: float = 60.0
    per_second: int = 300
    retries: float = 0.05

    @property
    def every_seconds(self) -> float:
        """How often everything is looked at."""
        return min(60.0, self.minutes * 60 / 16)

    @property
    def retention_seconds(self) -> float:
        """So short that what is kept has stopped growing before the second quarter begins."""
        return min(300.0, self.minutes * 60 / 8)


class Watched(NamedTuple):
    name: str
    unit: str
    #: As much more than before, in per cent or in its own unit, still counts as flat.
    percent: float
    slack: float
    #: What stands for a quarter. Dead rows pile up until the next vacuum: a look shows a moment of that, so the most counts.
    of: Callable[[list[float]], float] = statistics.median


#: What is looked at, and from when on it is said to grow. Sizes of tables go up and down with each vacuum and prune.
WATCHED = {
    "worker_memory": Watched("memory of the worker", "MB", 5, 2),
    "client_memory": Watched("memory of the enqueuing client", "MB", 5, 2),
    "worker_cpu": Watched("CPU of the worker", "µs/job", 10, 5),
    "server_cpu": Watched("CPU of the whole PostgreSQL server", "µs/job", 10, 5),
    "open_bytes": Watched("open_jobs, its table", "MB", 15, 2),
    "open_index_bytes": Watched("open_jobs, its indexes", "MB", 15, 2),
    "open_dead_rows": Watched("open_jobs, dead rows", "rows", 50, 20_000, max),
    "ledger_rows": Watched("ledger, rows", "rows", 15, 1000),
    "ledger_bytes": Watched("ledger, its table", "MB", 15, 2),
    "ledger_index_bytes": Watched("ledger, its indexes", "MB", 15, 2),
    "journal_bytes": Watched("journal, table and indexes", "MB", 15, 2),
    "other_bytes": Watched("all other tables and their indexes", "MB", 15, 2),
    "connections": Watched("connections", "", 10, 2),
    "wait_p50": Watched("from due to claimed, p50", "ms", 50, 5),
    "wait_p99": Watched("from due to claimed, p99", "ms", 100, 50),
}


def measure(dsn: str, plan: Plan, *, tell: Callable[[str], None] = print) -> Report:
    with scratch.database(dsn) as scratch_dsn, Faultline(scratch_dsn) as app, app.database.connect() as connection:
        report = Report("steady", machine(connection))
        with _worker(scratch_dsn, plan) as worker, _load(app, plan) as load:
            wait_for(lambda: bool(app.database.run(views.workers())))
            looks = list(_looks(app, connection, worker, load, plan, tell))
    report.figures = [
        Figure("jobs enqueued", load.enqueued, "jobs"),
        Figure("jobs enqueued, rate", load.enqueued / load.seconds, "jobs/s", f"at least {plan.per_second * 0.99:g}",
               load.enqueued / load.seconds >= plan.per_second * 0.99),
        *(judged(name, [look.get(name) for look in looks]) for name in WATCHED),
    ]  # fmt: skip
    report.curves = [
        Curve(watched.name, "minutes", watched.unit, [{"at": look["minutes"], "value": look[name]} for look in looks])
        for name, watched in WATCHED.items()
    ]
    return report


def judged(name: str, values: list[Any]) -> Figure:
    """How much more it is in the last quarter than in the second."""
    watched, quarter = WATCHED[name], len(values) // 4
    if quarter < 1:
        return Figure(watched.name, float("nan"), "%", "too few looks", None)
    before, after = (watched.of(part) for part in (values[quarter : 2 * quarter], values[-quarter:]))
    grown = 100 * (after - before) / before if before else 0.0
    flat = after - before <= max(watched.slack, before * watched.percent / 100)
    return Figure(f"{watched.name}: last quarter against the second", grown, "%", f"at most {watched.percent:g}", flat)


def _looks(
    app: Faultline, connection: Any, worker: subprocess.Popen[bytes], load: _Load, plan: Plan, tell: Callable[[str], None]
) -> Iterator[Point]:
    begun, number = time.monotonic(), 0
    server = connection.info.backend_pid
    last = (_done(app), cpu_seconds(worker.pid), server_cpu_seconds(server))
    while (number := number + 1) * plan.every_seconds <= plan.minutes * 60 + 1e-6:
        load.check(begun + number * plan.every_seconds - time.monotonic())
        if worker.poll() is not None:
            raise RuntimeError(f"the worker ended with status {worker.returncode}")
        now = (_done(app), cpu_seconds(worker.pid), server_cpu_seconds(server))
        done = max(1, now[0] - last[0])
        look = {
            "minutes": round((time.monotonic() - begun) / 60, 2),
            "done": done,
            "worker_memory": memory_megabytes(worker.pid),
            "client_memory": memory_megabytes(os.getpid()),
            "worker_cpu": (now[1] - last[1]) / done * 1e6,
            "server_cpu": (now[2] - last[2]) / done * 1e6,
            **_sizes(app),
            **_waits(connection),
        }
        last = now
        tell(
            f"minute {look['minutes']:g}: {done / plan.every_seconds:,.0f} jobs/s, worker {look['worker_memory']:.1f} MB, "
            f"{look['worker_cpu']:.0f} + {look['server_cpu']:.0f} µs/job, open_jobs {look['open_bytes']:.1f} MB, "
            f"{look['open_dead_rows']:,} dead rows, ledger {look['ledger_rows']:,} rows in {look['ledger_bytes']:.1f} MB"
        )
        yield look


def _done(app: Faultline) -> int:
    """Attempts that this database's workers have finished, by their own tally."""
    with app.database.connection() as connection:
        row = connection.execute("select coalesce(sum(succeeded), 0)::bigint from faultline.tallies").fetchone()
    return int(row[0]) if row else 0


def _sizes(app: Faultline) -> Point:
    seen = app.database.run(health())
    tables = {table.name: table for table in seen.tables}
    with app.database.connection() as connection:
        row = connection.execute("select count(*) from faultline.ledger").fetchone()
    named = ("open_jobs", "ledger", "journal")
    others = sum(table.table_bytes + table.index_bytes for table in seen.tables if table.name not in named)
    return {
        "open_bytes": tables["open_jobs"].table_bytes / 1e6,
        "open_index_bytes": tables["open_jobs"].index_bytes / 1e6,
        "open_dead_rows": tables["open_jobs"].dead_rows,
        "ledger_rows": int(row[0]) if row else 0,
        "ledger_bytes": tables["ledger"].table_bytes / 1e6,
        "ledger_index_bytes": tables["ledger"].index_bytes / 1e6,
        "journal_bytes": (tables["journal"].table_bytes + tables["journal"].index_bytes) / 1e6,
        "other_bytes": others / 1e6,
        "connections": seen.connections,
    }


def _waits(connection: Any) -> Point:
    """Of the newest thousand jobs that succeeded at once."""
    rows = connection.execute(
        "select extract(epoch from claimed_at - created_at)::float8 * 1000 from"
        " (select * from faultline.ledger order by job_id desc limit 1000) newest where attempt = 1 order by 1"
    ).fetchall()
    waits = [row[0] for row in rows] or [float("nan")]
    return {"wait_p50": statistics.median(waits), "wait_p99": waits[int(len(waits) * 0.99)]}


class _Load:
    """A client that enqueues at an even pace, in a thread of its own. What fell behind is caught up with."""

    def __init__(self, app: Faultline, plan: Plan) -> None:
        self._app = app
        self._plan = plan
        self._chance = random.Random(1)  # noqa: S311 - the same share of retries every time
        self._stop = threading.Event()
        self._failed: BaseException | None = None
        self._begun = time.monotonic()
        self.enqueued = 0
        self.seconds = 0.0
        self.thread = threading.Thread(target=self._run, name="load", daemon=True)

    def check(self, seconds: float) -> None:
        """Wait that long, unless the load fails meanwhile."""
        self._stop.wait(max(0.0, seconds))
        if self._failed is not None:
            raise self._failed

    def stop(self) -> None:
        self._stop.set()
        self.thread.join()

    def _run(self) -> None:
        try:
            while not self._stop.wait(max(0.0, _TICK_SECONDS - (time.monotonic() - self._begun) % _TICK_SECONDS)):
                due = int((time.monotonic() - self._begun) * self._plan.per_second) - self.enqueued
                self._app.enqueue_many([self._job() for _ in range(min(due, 2000))])
                self.enqueued += min(due, 2000)
                self.seconds = time.monotonic() - self._begun
        except Exception as error:  # noqa: BLE001 - told by whoever looks next
            self._failed = error
            self._stop.set()

    def _job(self) -> Submission:
        return Submission("fails_once" if self._chance.random() < self._plan.retries else "succeeds", ARGS, queue=_QUEUE)


@contextlib.contextmanager
def _load(app: Faultline, plan: Plan) -> Iterator[_Load]:
    load = _Load(app, plan)
    load.thread.start()
    try:
        yield load
    finally:
        load.stop()


@contextlib.contextmanager
def _worker(dsn: str, plan: Plan) -> Iterator[subprocess.Popen[bytes]]:
    code = f"from faultline_proof.bench import steady; steady.work({plan.retention_seconds!r})"
    process = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "FAULTLINE_DSN": dsn})
    with ended_with(process):
        yield process


async def succeeds(**_: Any) -> dict[str, bool]:
    return {"sent": True}


async def fails_once(job: Job, **_: Any) -> dict[str, bool]:
    if job.attempt == 1:
        raise RuntimeError("the first attempt fails")
    return {"sent": True}


def work(retention_seconds: float) -> None:
    """What the worker process runs."""
    app = Faultline()
    app.task(succeeds)
    app.task(backoff=lambda _: 1.0)(fails_once)
    kept = Retention(ledger=retention_seconds, failed=retention_seconds, journal=retention_seconds, keys=retention_seconds)
    app.run_worker({_QUEUE: 50}, retention=kept)
