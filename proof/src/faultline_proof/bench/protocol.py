"""What the protocol costs without any worker: bare calls of the verbs, PostgreSQL's CPU and WAL per job, claims under load.

Everything runs in a scratch database that is dropped at the end. Rates are noisy on a busy machine; CPU, WAL and ratios
within one run are what to compare.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from faultline.app.application import Faultline
from faultline.core.model import Bound, Submission, bounds_after
from faultline.store import scratch, verbs
from faultline.store.database import Database, run_on
from faultline_proof.bench.system import thread_cpu_seconds

if TYPE_CHECKING:
    from collections.abc import Callable

ARGS = (
    '{"order_id": 1234567, "email": "ada.lovelace@example.org", "items": [1, 2, 3],'
    ' "note": "leave it at the back door, ring twice, ok"}'
)
BATCH = 500


@dataclass(frozen=True, slots=True)
class Figure:
    name: str
    value: float
    unit: str
    goal: str = ""
    good: bool | None = None


@dataclass(frozen=True, slots=True)
class Drained:
    jobs: int
    seconds: float
    cpu_micros: float
    wal_bytes: float

    @property
    def rate(self) -> float:
        return self.jobs / self.seconds


def measure(dsn: str, *, jobs: int = 100_000, backlog: int = 1_000_000, tell: Callable[[str], None] = print) -> list[Figure]:
    """Measure everything and give the figures, each with its goal."""
    figures: list[Figure] = []
    for part in (_hot_path, _claims_under_load, _held_snapshot):
        tell(f"measuring: {(part.__doc__ or '').splitlines()[0]}")
        with scratch.database(dsn) as scratch_dsn:
            figures += part(scratch_dsn, jobs, backlog)
    return [*figures, _help()]


def _hot_path(dsn: str, jobs: int, _: int) -> list[Figure]:
    """enqueue, claim and complete, one connection"""
    with Faultline(dsn) as app, app.database.connect() as connection:
        submissions = [Submission("bench", ARGS, queue="bench") for _ in range(jobs)]
        app.enqueue_many(submissions[:BATCH])
        drain(connection, BATCH)
        connection.execute("checkpoint")
        rounds = [_round(app, connection, submissions) for _ in range(3)]
        enqueue_rate = statistics.median(rate for rate, _, _ in rounds)
        enqueue_wal = statistics.median(wal for _, wal, _ in rounds)
        drained = sorted((one for _, _, one in rounds), key=lambda one: one.rate)[1]
        singles = [_timed(lambda: app.enqueue_many([submissions[0]])) for _ in range(300)]
    total_wal = enqueue_wal + drained.wal_bytes
    single = statistics.median(singles) * 1000
    return [
        Figure("bulk enqueue", enqueue_rate, "jobs/s", "at least 40,000", enqueue_rate >= 40_000),
        Figure("single enqueue, p50", single, "ms", "under 2", single < 2),
        Figure("claim + complete", drained.rate, "jobs/s"),
        Figure("PostgreSQL CPU, claim + complete", drained.cpu_micros, "µs/job", "at most 40", drained.cpu_micros <= 40),
        Figure("WAL, enqueue", enqueue_wal, "B/job"),
        Figure("WAL, claim + complete", drained.wal_bytes, "B/job"),
        Figure("WAL, all three", total_wal, "B/job", "at most 1,500", total_wal <= 1500),
    ]


def _round(app: Faultline, connection: Any, submissions: list[Submission]) -> tuple[float, float, Drained]:
    """Enqueue and drain once: jobs/s and WAL per job of the enqueue, and what the drain took."""
    wal, begun = _wal(connection), time.perf_counter()
    app.enqueue_many(submissions)
    rate = len(submissions) / (time.perf_counter() - begun)
    return rate, (_wal(connection) - wal) / len(submissions), drain(connection, len(submissions))


def _claims_under_load(dsn: str, _: int, backlog: int) -> list[Figure]:
    """claim(100) with a large table"""
    database = Database(dsn)
    figures = []
    with database.connect() as early, database.connect() as late:
        for _ in range(20):
            run_on(early, verbs.claim("due", owner="early/0", max_jobs=100))
        for name, state, delay in (("due", "queued", 0), ("tomorrow", "queued", 86_400), ("failed", "failed", 0)):
            _fill(late, name, state, backlog, delay)
            run_on(late, verbs.enqueue_many([Submission("bench", ARGS, queue=name) for _ in range(2000)]))
        late.execute("vacuum analyze faultline.open_jobs")
        for name, connection, words in (
            ("due", late, f"{backlog:,} waiting"),
            ("tomorrow", late, f"{backlog:,} due tomorrow"),
            ("failed", late, f"{backlog:,} failed"),
            ("due", early, f"{backlog:,} waiting, connection had polled the empty queue"),
        ):
            claim = verbs.claim(name, owner=f"w/{words}", max_jobs=100)
            times = [_timed(lambda c=connection, s=claim: run_on(c, s)) for _ in range(15)]  # type: ignore[misc]
            worst = sorted(times)[-2] * 1000
            figures.append(Figure(f"claim(100), {words}", worst, "ms", "under 10", worst < 10))
    return figures


def _held_snapshot(dsn: str, jobs: int, _: int) -> list[Figure]:
    """Claim + complete while somebody holds an old snapshot open"""
    timed = min(20_000, jobs)
    with Faultline(dsn) as app, app.database.connect() as connection, app.database.connect() as holder:
        app.enqueue_many(Submission("bench", ARGS, queue="bench") for _ in range(2 * jobs + 2 * timed))
        drain(connection, timed // 2)
        holder.execute("begin isolation level repeatable read")
        holder.execute("select count(*) from faultline.open_jobs")
        bounds: dict[int, Bound] = {}
        before = drain(connection, timed, bounds)
        drain(connection, jobs, bounds)
        after = drain(connection, timed, bounds)
        holder.execute("rollback")
    kept = after.rate / before.rate * 100
    return [
        Figure("claim + complete, old snapshot held", before.rate, "jobs/s"),
        Figure(f"the same after {jobs:,} further jobs", after.rate, "jobs/s"),
        Figure("rate kept", kept, "%", "at least 85", kept >= 85),
    ]


def _help() -> Figure:
    command = [sys.executable, "-m", "faultline", "--help"]
    times = [_timed(lambda: subprocess.run(command, check=True, capture_output=True)) for _ in range(5)]
    median = statistics.median(times)
    return Figure("faultline --help", median, "s", "under 0.3", median < 0.3)


def drain(connection: Any, jobs: int, bounds: dict[int, Bound] | None = None) -> Drained:
    """Claim and complete, as fast as one connection goes. Carries lower bounds along as a worker does."""
    bounds = {} if bounds is None else bounds
    backend = connection.info.backend_pid
    wal, cpu, begun, done, call = _wal(connection), thread_cpu_seconds(backend), time.perf_counter(), 0, 0
    while done < jobs:
        call += 1
        claim = verbs.claim("bench", owner=f"bench/{begun}/{call}", max_jobs=BATCH, bounds=[*bounds.values()])
        leases = run_on(connection, claim)
        if not leases:
            break
        run_on(connection, verbs.complete(leases, ["null"] * len(leases)))
        bounds.update(bounds_after(leases))
        done += len(leases)
    seconds = time.perf_counter() - begun
    return Drained(
        jobs=done,
        seconds=seconds,
        cpu_micros=(thread_cpu_seconds(backend) - cpu) / done * 1e6,
        wal_bytes=(_wal(connection) - wal) / done,
    )


def _fill(connection: Any, name: str, state: str, rows: int, delay_seconds: int) -> None:
    """Put rows straight into the table. Only the benchmark does this, in its own scratch database, with guards off."""
    with connection.transaction():
        connection.execute("set local session_replication_role = replica")
        connection.execute(
            "insert into faultline.open_jobs (id, created_at, next_run_at, lease_seconds, priority, max_attempts, keep_args,"
            " queue, task, args, state, finished_at)"
            " select faultline.new_id(n), now(), now() + make_interval(secs => %s) + n * interval '1 microsecond', 30, 0, 5,"
            " true, %s, 'bench', %s, %s, case when %s = 'failed' then now() end from generate_series(1, %s) n",
            (delay_seconds - 10, name, ARGS, state, state, rows),
        )


def _wal(connection: Any) -> float:
    return float(connection.execute("select pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchone()[0])


def _timed(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun
