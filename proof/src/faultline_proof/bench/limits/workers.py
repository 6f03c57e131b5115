"""Real workers: a queue with a limit, many groups, slow commits, and schedules that nothing is due of."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from psycopg import sql

from faultline.app.application import Faultline
from faultline.core.host import Host
from faultline.core.model import Submission
from faultline.store.database import Database, run_on
from faultline.store.reads import views
from faultline.store.verbs import limit
from faultline_proof.bench.processes import ended_with, wait_for, worker_process
from faultline_proof.bench.protocol import Figure
from faultline_proof.bench.system import family_cpu_seconds, server_cpu_seconds
from faultline_proof.tasks import wait

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

    from faultline.core.model import Json
    from faultline_proof.bench.limits.effort import Effort

_PATIENCE = 300.0
#: Of the queue, and how many seconds its jobs take.
_AT_ONCE, _JOB_SECONDS = 10, 0.01
#: A worker holds nothing ahead in a queue with limits. So it has a slot for each job of a large claim.
_NOOP_SLOTS = 500
_CROWD_SLOTS, _CROWD_SECONDS, _CROWD_LIMIT, _COMMIT_MICROS, _CROWD_PROCESSES = 10, 0.05, 1_000, 5_000, 2
_SETTLE_SECONDS = 3.0
#: How many jobs of a queue ran at the same time, by the database's clock.
_MOST_AT_ONCE = """
select max(running) from (
  select sum(change) over (order by at, change) as running from (
    select claimed_at as at, 1 as change from faultline.ledger where queue = %(queue)s
    union all
    select finished_at, -1 from faultline.ledger where queue = %(queue)s
  ) changes
) moments
"""


@dataclass(frozen=True, slots=True)
class Drained:
    """What real workers made of the jobs of one queue."""

    rate: float
    at_once: int
    transactions: float
    server_micros: float


def queue(dsn: str, effort: Effort) -> list[Figure]:
    """A queue limit of 10 with jobs of 10 ms in two worker processes, beside 10 slots without a limit in one"""
    jobs = max(100, int(effort.seconds * _AT_ONCE / _JOB_SECONDS))
    plain, limited = [], []
    for turn in range(effort.rounds):
        plain.append(_drained(dsn, _waiting(f"slots-{turn}", jobs), {}, slots=_AT_ONCE))
        declared = {"queue": {"concurrency": _AT_ONCE}}
        limited.append(_drained(dsn, _waiting(f"limit-{turn}", jobs), declared, slots=_AT_ONCE, processes=2))
    share = statistics.median(one.rate for one in limited) / (_AT_ONCE / _JOB_SECONDS) * 100
    most = max(one.at_once for one in limited)
    return [
        Figure("10 slots, jobs of 10 ms, no limit", statistics.median(one.rate for one in plain), "jobs/s"),
        Figure("limit of 10, two workers of 10 slots", statistics.median(one.rate for one in limited), "jobs/s"),
        Figure("the same, share of 1,000/s", share, "%", "at least 90", share >= 90),
        Figure("the same, times 10 slots without a limit", _ratio(limited, plain, "rate"), "x"),
        Figure("most that ran at once", most, "jobs", "at most 10", most <= _AT_ONCE),
        Figure("transactions, no limit", statistics.median(one.transactions for one in plain), "/job"),
        Figure("transactions, limit of 10", statistics.median(one.transactions for one in limited), "/job"),
        Figure("PostgreSQL's CPU, times without a limit", _ratio(limited, plain, "server_micros"), "x"),
    ]


def noops(dsn: str, effort: Effort) -> list[Figure]:
    """Jobs that do nothing in 10,000 groups at limit 1, beside plain ones; two worker processes"""
    plain, grouped = [], []
    for turn in range(effort.rounds):
        name = f"plain-{turn}"
        plain.append(_drained(dsn, [Submission("nothing", queue=name)] * effort.noops, {}, slots=_NOOP_SLOTS, processes=2))
        name = f"groups-{turn}"
        jobs = [Submission("nothing", queue=name, group=f"g{n % effort.groups}") for n in range(effort.noops)]
        grouped.append(_drained(dsn, jobs, {"each_group": {"concurrency": 1}}, slots=_NOOP_SLOTS, processes=2))
    rate = statistics.median(one.rate for one in grouped)
    words = f"two workers of {_NOOP_SLOTS} slots"
    return [
        Figure(f"plain jobs that do nothing, {words}", statistics.median(one.rate for one in plain), "jobs/s"),
        Figure(f"the same in {effort.groups:,} groups at limit 1", rate, "jobs/s", "at least 15,000", rate >= 15_000),
        Figure("the same, times plain jobs", _ratio(grouped, plain, "rate"), "x"),
        Figure("PostgreSQL's CPU, plain jobs", statistics.median(one.server_micros for one in plain), "µs/job"),
        Figure("PostgreSQL's CPU, in groups", statistics.median(one.server_micros for one in grouped), "µs/job"),
    ]


def beside_no_limit(dsn: str, effort: Effort) -> list[Figure]:
    """Many workers of 10 slots with commits of 5 ms: a limit that holds nobody up, beside none"""
    _slow_commits(dsn)
    jobs = int(effort.seconds * effort.workers * _CROWD_SLOTS / _CROWD_SECONDS * 0.75)
    rates: dict[str, list[float]] = {"no limit": [], "a limit": []}
    for turn in range(effort.rounds):
        for kind, found in rates.items():
            name = f"{kind} {turn}"
            with Faultline(dsn) as app:
                if kind == "a limit":
                    app.database.run(limit.declare_queue(name, {"queue": {"concurrency": _CROWD_LIMIT}}))
            found.append(_drained(dsn, _waiting(name, jobs, _CROWD_SECONDS), {}, crowd=effort.workers).rate)
    share = statistics.median(100 * one / free for one, free in zip(rates["a limit"], rates["no limit"], strict=True))
    name = f"a limit of {_CROWD_LIMIT:,}"
    return [
        Figure(
            f"{effort.workers} workers of 10 slots, commits of 5 ms, no limit",
            statistics.median(rates["no limit"]),
            "jobs/s",
        ),
        Figure(name, statistics.median(rates["a limit"]), "jobs/s"),
        Figure(f"{name}, share of no limit", share, "%"),
    ]


def schedules(dsn: str, effort: Effort) -> list[Figure]:
    """Schedules of which nothing is due: the CPU of an idle worker and of PostgreSQL, beside none"""
    with Faultline(dsn) as app, worker_process(dsn, "--queue", "default=10") as worker, app.database.connect() as connection:
        wait_for(lambda: bool(app.database.run(views.workers())))
        backend, pid = connection.info.backend_pid, worker.pid
        without = _idle_share(backend, pid, effort.idle_seconds)
        for number in range(effort.schedules):
            # Nothing is due while this looks.
            app.schedules.set(f"s{number}", Submission("nothing", queue="elsewhere"), every=86_400)
        beside = _idle_share(backend, pid, effort.idle_seconds)
    more = beside - without
    return [
        Figure("an idle worker and its PostgreSQL, CPU", without, "%"),
        Figure(f"the same with {effort.schedules:,} schedules", beside, "%"),
        Figure("what the schedules cost, of a core", more, "%", "under 1", more < 1),
    ]


def _idle_share(backend: int, worker: int, seconds: float) -> float:
    time.sleep(_SETTLE_SECONDS)
    before, begun = server_cpu_seconds(backend) + family_cpu_seconds(worker), time.monotonic()
    time.sleep(seconds)
    after = server_cpu_seconds(backend) + family_cpu_seconds(worker)
    return 100 * (after - before) / (time.monotonic() - begun)


def _waiting(name: str, jobs: int, seconds: float = _JOB_SECONDS) -> list[Submission]:
    return [Submission("wait", f'{{"seconds": {seconds}}}', queue=name)] * jobs


def _ratio(some: list[Drained], others: list[Drained], figure: str) -> float:
    pairs = zip(some, others, strict=True)
    return float(statistics.median(getattr(one, figure) / getattr(other, figure) for one, other in pairs))


def _drained(
    dsn: str, jobs: list[Submission], declared: dict[str, Json], *, slots: int = 0, processes: int = 1, crowd: int = 0
) -> Drained:
    """Enqueue all into a paused queue, before workers that are up; from the first claim to the last completion."""
    name = str(jobs[0].queue)
    with Faultline(dsn) as app, app.database.connect() as connection:
        if declared:
            run_on(connection, limit.declare_queue(name, declared))
        app.pause(name)
        words = ("--queue", f"{name}={slots}", "--processes", str(processes))
        with _crowd(dsn, name, crowd) if crowd else worker_process(dsn, *words):
            wait_for(lambda: len(app.database.run(views.workers())) == (crowd or processes))
            app.enqueue_many(jobs)
            # A worker learns which queues have limits by its upkeep, within two seconds.
            time.sleep(_SETTLE_SECONDS)
            connection.execute("checkpoint")
            before, cpu = _transactions(connection), server_cpu_seconds(connection.info.backend_pid)
            app.resume(name)
            wait_for(lambda: app.database.run(views.is_drained(name)), _PATIENCE, pause=0.25)
            time.sleep(1.0)  # accounts are written a moment later
            after, used = _transactions(connection), server_cpu_seconds(connection.info.backend_pid) - cpu
        begun, ended = app.database.run(views.span(name))
        row = connection.execute(_MOST_AT_ONCE, {"queue": name}).fetchone()
        return Drained(
            rate=len(jobs) / (ended - begun).total_seconds(),
            at_once=int(row[0]) if row else 0,
            transactions=(after - before) / len(jobs),
            server_micros=used / len(jobs) * 1e6,
        )


def _transactions(connection: psycopg.Connection) -> float:
    query = "select xact_commit from pg_stat_database where datname = current_database()"
    row = connection.execute(query).fetchone()
    return float(row[0]) if row else 0.0


def _slow_commits(dsn: str) -> None:
    """Every commit waits for 5 ms, as on a disk or a standby that is far away. Only where fsync is on."""
    with Database(dsn).connect() as connection:
        for name, value in (("commit_delay", _COMMIT_MICROS), ("commit_siblings", 0)):
            statement = sql.SQL("alter database {} set {} = {}")
            words = (sql.Identifier(connection.info.dbname), sql.Identifier(name), sql.Literal(value))
            connection.execute(statement.format(*words))


@contextlib.contextmanager
def _crowd(dsn: str, name: str, workers: int) -> Iterator[None]:
    """Many workers in a few processes: that many processes would want more cores than there are."""
    with contextlib.ExitStack() as stack:
        for nth in range(_CROWD_PROCESSES):
            number = workers // _CROWD_PROCESSES + (nth < workers % _CROWD_PROCESSES)
            code = f"from faultline_proof.bench.limits import workers; workers.crowd({name!r}, {number})"
            process = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "FAULTLINE_DSN": dsn})
            stack.enter_context(ended_with(process))
        yield


def crowd(name: str, number: int) -> None:
    """What each of these processes runs, until it is told to end."""

    async def main() -> None:
        asked = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asked.set)
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(number):
                await stack.enter_async_context(app.worker({name: _CROWD_SLOTS}))
            await asked.wait()
        await app.aclose()

    app: Any = Faultline(host=Host(companion=False))
    app.task(wait)
    asyncio.run(main())
