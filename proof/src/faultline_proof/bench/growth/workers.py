"""What real worker processes make of more: processes, connections, concurrency, jobs in flight, payload, queues, retries."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from faultline.app.application import Faultline
from faultline.core.model import Submission
from faultline.store.reads import views
from faultline_proof.bench import bare
from faultline_proof.bench.growth.points import fill_open, growth_of, points, settle
from faultline_proof.bench.processes import wait_for, worker_process
from faultline_proof.bench.protocol import ARGS
from faultline_proof.bench.report import Curve
from faultline_proof.bench.system import cpu_seconds, memory_megabytes, server_cpu_seconds
from faultline_proof.bench.tasks import APPLICATION

if TYPE_CHECKING:
    from collections.abc import Sequence

    from faultline_proof.bench.growth.points import Effort
    from faultline_proof.bench.report import Point

_READY_SECONDS = 1.0
_ENQUEUED_PER_SECOND = 10_000
_DRAIN_SECONDS_MAX = 240.0
_IN_FLIGHT_MEGABYTES_MAX = 150.0
_SNAPSHOT_GROWTH_MAX = 1.10


def drain(dsn: str, submissions: Sequence[Submission], *, concurrency: int = 100, processes: int = 1) -> Point:
    """Jobs a second from the first claim to the last completion, and the CPU of everything. They fall due all at once."""
    queues = sorted({str(submission.queue) for submission in submissions})
    words = [word for name in queues for word in ("--queue", f"{name}={concurrency}")]
    with Faultline(dsn) as app, app.database.connect() as connection:
        backend = connection.info.backend_pid
        with worker_process(dsn, *words, "--processes", str(processes), application=APPLICATION) as process:
            wait_for(lambda: len(app.database.run(views.workers())) == processes)
            seconds = _READY_SECONDS + len(submissions) / _ENQUEUED_PER_SECOND
            due_at = app.database.run(views.clock()) + timedelta(seconds=seconds)
            app.enqueue_many([replace(submission, run_at=due_at) for submission in submissions])
            time.sleep(max(0.0, (due_at - app.database.run(views.clock())).total_seconds()))
            server, own = server_cpu_seconds(backend), cpu_seconds(process.pid)
            begun = time.monotonic()
            wait_for(lambda: _is_drained(connection), _DRAIN_SECONDS_MAX, pause=0.1)
            passed, jobs = time.monotonic() - begun, len(submissions)
            found: Point = {
                "value": jobs / passed,
                "server_cpu_micros": (server_cpu_seconds(backend) - server) / jobs * 1e6,
            }
            if processes == 1:
                found["worker_cpu_micros"] = (cpu_seconds(process.pid) - own) / jobs * 1e6
                found["worker_memory_mb"] = memory_megabytes(process.pid)
            return found


def _is_drained(connection: object) -> bool:
    asked = (
        "select not exists (select from faultline.open_jobs where state = 'queued')"
        " and not exists (select from faultline.open_jobs where state = 'running')"
    )
    return bool(connection.execute(asked).fetchone()[0])  # type: ignore[attr-defined]


def processes(dsn: str, effort: Effort) -> list[Curve]:
    """No-op jobs over worker processes"""
    found = points(
        effort.small((1, 2, 4, 8, 16)),
        lambda at: drain(dsn, [Submission("nothing", ARGS, queue=f"p{at}")] * effort.jobs(50_000), processes=at),
    )
    return [Curve("no-op jobs, by worker processes", "worker processes", "jobs/s", found)]


def connections(dsn: str, effort: Effort) -> list[Curve]:
    """Bare claim and complete over connections"""

    def measure(at: int) -> Point:
        called = bare.call(dsn, [(500, max(effort.jobs(60_000) // at // 500, 4) * 500)], at)
        per_verb = {verb: [one for one in called if one.verb == verb] for verb in bare.VERBS}
        seconds = sum(max(one.seconds for one in per_verb[verb]) for verb in ("claim", "complete"))
        cpu = {f"{verb}_cpu_micros": sum(one.backend_micros for one in same) / at for verb, same in per_verb.items()}
        return {"value": sum(one.jobs for one in per_verb["claim"]) / seconds} | cpu

    found = points(effort.small((1, 2, 4, 8, 16)), measure)
    return [Curve("bare claim + complete, by connections", "connections", "jobs/s", found)]


def concurrency(dsn: str, effort: Effort) -> list[Curve]:
    """Jobs of 10 ms I/O over the concurrency of one worker"""

    def measure(at: int) -> Point:
        jobs = min(effort.jobs(60_000), 500 * at)
        return drain(dsn, [Submission("wait", '{"seconds": 0.01}', queue=f"c{at}")] * jobs, concurrency=at)

    found = points(effort.small((1, 10, 100, 1000, 10_000), 3), measure)
    return [Curve("10 ms I/O jobs, by concurrency", "concurrency", "jobs/s", found)]


def in_flight(dsn: str, effort: Effort) -> list[Curve]:
    """Memory of a worker over the jobs that it runs at the same time"""

    def measure(at: int) -> Point:
        name = f"flight-{at}"
        with Faultline(dsn) as app, app.database.connect() as connection:
            app.enqueue_many([Submission("wait", '{"seconds": 12}', queue=name)] * at)
            with worker_process(dsn, "--queue", f"{name}={at}", "--grace", "0", application=APPLICATION) as process:
                asked = "select coalesce(max(leases), 0) from faultline.workers"
                wait_for(lambda: connection.execute(asked).fetchone()[0] >= at, pause=0.2)  # type: ignore[index]
                time.sleep(2)
                running, cpu = memory_megabytes(process.pid), cpu_seconds(process.pid)
                time.sleep(2)
                share = (cpu_seconds(process.pid) - cpu) / 2 * 100
                wait_for(lambda: app.database.run(views.is_drained(name)), pause=0.2)
                return {
                    "value": running,
                    "cpu_percent_while_they_wait": share,
                    "afterwards_mb": memory_megabytes(process.pid),
                }

    found = points(effort.small((1, 100, 1000, 10_000)), measure)
    goal = f"under {_IN_FLIGHT_MEGABYTES_MAX:g} MB with 10,000"
    last = found[-1]["value"]
    ok = None if effort.quick or last is None else last < _IN_FLIGHT_MEGABYTES_MAX
    return [Curve("memory of a worker, by jobs in flight", "jobs in flight", "MB", found, goal, ok)]


def payload(dsn: str, effort: Effort) -> list[Curve]:
    """No-op jobs over the size of their arguments"""
    chance = random.Random(1)  # noqa: S311 - the same bytes every time

    def measure(at: int) -> Point:
        # Hexadecimal digits can be compressed to half: about what text can.
        args = f'{{"text": "{chance.randbytes(at // 2).hex()}"}}' if at else "{}"
        jobs = effort.jobs(20_000 if at <= 1000 else 100_000_000 // at)
        return drain(dsn, [Submission("nothing", args, queue=f"b{at}")] * jobs)

    found = points(effort.small((0, 1000, 10_000, 100_000)), measure)
    return [Curve("no-op jobs, by payload", "bytes of arguments", "jobs/s", found)]


def queues(dsn: str, effort: Effort) -> list[Curve]:
    """No-op jobs over the number of queues that one worker serves"""

    def measure(at: int) -> Point:
        jobs = effort.jobs(20_000)
        return drain(dsn, [Submission("nothing", ARGS, queue=f"q{at}-{n % at}") for n in range(jobs)])

    found = points(effort.small((1, 10, 100, 1000)), measure)
    return [Curve("no-op jobs, by queues of one worker", "queues", "jobs/s", found)]


def retries(dsn: str, effort: Effort) -> list[Curve]:
    """No-op jobs over the share that fails once"""

    def measure(at: int) -> Point:
        jobs = effort.jobs(30_000)
        tasks = ["fails_once" if n % 100 < at else "nothing" for n in range(jobs)]
        return drain(dsn, [Submission(task, ARGS, queue=f"r{at}") for task in tasks])

    found = points((0, 10, 50), measure)
    return [Curve("no-op jobs, by share of retries", "% that fail once", "jobs/s", found)]


def held_snapshot(dsn: str, effort: Effort) -> list[Curve]:
    """A worker under a snapshot that is held open for the whole run"""
    bite = effort.jobs(100_000)
    bites = 2 if effort.quick else 5
    with Faultline(dsn) as app, app.database.connect() as connection, app.database.connect() as holder:
        fill_open(connection, "held", bites * bite)
        settle(connection, "open_jobs")
        holder.execute("begin isolation level repeatable read")
        holder.execute("select count(*) from faultline.open_jobs")
        backend = connection.info.backend_pid
        with worker_process(dsn, "--queue", "held=100", application=APPLICATION) as process:
            wait_for(lambda: len(app.database.run(views.workers())) == 1)
            last, found = (0, time.monotonic(), server_cpu_seconds(backend), cpu_seconds(process.pid)), []
            for number in range(1, bites + 1):
                target = number * bite - (bite // 100 if number == bites else 0)
                wait_for(lambda: _succeeded(connection) >= target, _DRAIN_SECONDS_MAX, pause=0.1)  # noqa: B023
                now = (_succeeded(connection), time.monotonic(), server_cpu_seconds(backend), cpu_seconds(process.pid))
                jobs = now[0] - last[0]
                found.append(
                    {
                        "at": number * bite,
                        "value": (now[2] - last[2]) / jobs * 1e6,
                        "worker_cpu_micros": (now[3] - last[3]) / jobs * 1e6,
                        "jobs_per_second": jobs / (now[1] - last[1]),
                    }
                )
                last = now
        holder.execute("rollback")
    growth = growth_of(found)
    ok = None if effort.quick or growth is None else growth <= _SNAPSHOT_GROWTH_MAX
    goal = "the last within 10 % of the first"
    return [Curve("CPU of the server under a held snapshot", "jobs since it was taken", "µs CPU/job", found, goal, ok)]


def _succeeded(connection: object) -> int:
    asked = "select coalesce(sum(succeeded), 0)::bigint from faultline.tallies"
    return int(connection.execute(asked).fetchone()[0])  # type: ignore[attr-defined]


CURVES = (processes, connections, concurrency, in_flight, payload, queues, retries, held_snapshot)
