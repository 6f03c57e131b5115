"""The floor under the worker, and where each microsecond and each byte goes above it. One run, in scratch databases.

Bare calls of the verbs by batch and connections, PostgreSQL's CPU by the operating system's account of its backends, the WAL
by kind of record, the statements and the CPU of a worker by its parts. What is found is in the shape of `report`.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from faultline.app.application import Faultline
from faultline.core.ids import Ids
from faultline.core.model import Submission, bounds_after
from faultline.store import scratch
from faultline.store import verbs as queue
from faultline.store.database import Database, run_on
from faultline_proof.bench import bare, wal
from faultline_proof.bench.dissect import PARTS, Dissected, dissect
from faultline_proof.bench.protocol import ARGS, Figure
from faultline_proof.bench.report import Report, Table, machine
from faultline_proof.bench.system import server_cpu_seconds
from faultline_proof.bench.worker import bare_rate, drained_rate

if TYPE_CHECKING:
    from faultline.core.model import Lease

Tell = Callable[[str], None]
#: The batch at which PostgreSQL's CPU is judged: what a worker at full load sends is larger than that.
JUDGED_BATCH = 300


@dataclass(frozen=True, slots=True)
class Effort:
    #: (batch, jobs on each connection)
    batches: tuple[tuple[int, int], ...] = ((1, 3000), (10, 20_000), (100, 60_000), (300, 60_000), (1000, 60_000))
    jobs: int = 60_000
    rounds: int = 3


QUICK = Effort(batches=((1, 500), (10, 3000), (100, 12_000), (300, 12_000), (1000, 12_000)), jobs=20_000, rounds=1)


def measure(dsn: str, *, effort: Effort | None = None, quick: bool = False, tell: Tell = print) -> Report:
    effort = effort or (QUICK if quick else Effort())
    with Database(dsn).connect() as connection:
        report = Report("limit", machine(connection), quick=quick)
    for part in (_bare_calls, _written, taken_apart, _shares):
        tell(f"measuring: {(part.__doc__ or '').splitlines()[0]}")
        with scratch.database(dsn) as scratch_dsn:
            part(scratch_dsn, effort, report)
    return report


def _bare_calls(dsn: str, effort: Effort, report: Report) -> None:
    """The verbs without tasks, by batch, on one and two connections"""
    rows: list[list[str | float]] = []
    judged = rest = 0.0
    for connections in (1, 2):
        called = bare.call(dsn, effort.batches, connections)
        for verb in bare.VERBS:
            for batch, _ in effort.batches:
                same = [one for one in called if (one.verb, one.batch) == (verb, batch)]
                rate = sum(one.jobs for one in same) / max(one.seconds for one in same)
                cpu = statistics.mean(one.backend_micros for one in same)
                # Where several connections are at work, each of them is the rest to the others.
                beside = same[0].rest_seconds / same[0].jobs * 1e6 if connections == 1 else float("nan")
                rows.append([verb, connections, batch, rate, 1e6 / rate, cpu, beside])
                if connections == 1 and batch == JUDGED_BATCH and verb != "enqueue":
                    judged, rest = judged + cpu, rest + beside
    columns = ["verb", "connections", "batch", "jobs/s", "µs/job", "CPU of a backend, µs/job", "rest of the server, µs/job"]
    report.tables.append(Table("bare calls of the verbs", columns, rows))
    name = f"PostgreSQL CPU, bare claim + complete in batches of {JUDGED_BATCH}"
    report.figures += [
        Figure(name, judged, "µs/job", "under 35", judged < 35),
        Figure("the rest of the server meanwhile", rest, "µs/job"),
    ]


def _written(dsn: str, effort: Effort, report: Report) -> None:
    """The WAL of each verb, by kind of record"""
    jobs = effort.jobs // JUDGED_BATCH * JUDGED_BATCH
    found = written(dsn, jobs, JUDGED_BATCH)
    rows: list[list[str | float]] = []
    for verb, records in found.items():
        rows += [
            [verb, record.kind, record.records / jobs, record.size / jobs, record.images / jobs]
            for record in records
            if record.records * 1000 >= jobs
        ]
    columns = ["verb", "record", "records/job", "B/job", "images of pages, B/job"]
    report.tables.append(Table(f"WAL, {len(ARGS)} bytes of arguments, batches of {JUDGED_BATCH}", columns, rows))
    sizes = {verb: sum(record.size for record in records) / jobs for verb, records in found.items()}
    total = sum(sizes.values())
    report.figures += [Figure(f"WAL, {verb}", size, "B/job") for verb, size in sizes.items()]
    report.figures.append(Figure("WAL, all three", total, "B/job", "under 1,200", total < 1200 if total else None))


def written(dsn: str, jobs: int, batch: int) -> dict[str, list[wal.Record]]:
    """What each verb wrote for so many jobs. Vacuum is off meanwhile: it writes at times of its own."""
    with Database(dsn).connect() as connection:
        for table in ("open_jobs", "ledger"):
            connection.execute(f"alter table faultline.{table} set (autovacuum_enabled = off)".encode())
        submissions, ids, calls = [Submission("bench", ARGS, queue="wal")] * batch, Ids(), jobs // batch
        leases: list[list[Lease]] = []

        def claim(number: int) -> None:
            bounds = [*bounds_after(leases[-1] if leases else []).values()]
            leases.append(run_on(connection, queue.claim("wal", owner=f"w/{number}", max_jobs=batch, bounds=bounds)))

        verbs: dict[str, Callable[[int], Any]] = {
            "enqueue": lambda _: run_on(connection, queue.enqueue_many(submissions, ids)),
            "claim": claim,
            "complete": lambda n: run_on(connection, queue.complete(leases[n], ["null"] * batch)),
        }
        found = {}
        for verb, call in verbs.items():
            start = wal.place(connection)
            for number in range(calls):
                call(number)
            # At once: a checkpoint removes what it does not need any more.
            found[verb] = wal.between(connection, start, wal.place(connection))
        return found


def taken_apart(dsn: str, effort: Effort, report: Report) -> None:
    """A worker's statements, and its CPU by part"""
    with Faultline(dsn) as app, app.database.connect() as connection:

        def fill(name: str) -> str:
            app.enqueue_many(Submission("nothing", ARGS, queue=name) for _ in range(effort.jobs))
            return name

        statements = dissect(dsn, fill("statements"), effort.jobs, count_statements=True).statements
        rounds = []
        for number in range(effort.rounds):
            name, server = fill(f"apart-{number}"), connection.info.backend_pid
            before = server_cpu_seconds(server)
            rounds.append((dissect(dsn, name, effort.jobs), server_cpu_seconds(server) - before))
    rows: list[list[str | float]] = [[name, n, n / effort.jobs * 1000] for name, n in statements.items()]
    report.tables.append(Table("statements of a worker in a drain", ["statement", "sent", "per 1,000 jobs"], rows))
    report.figures.append(Figure("statements", sum(statements.values()) / effort.jobs * 1000, "/1,000"))
    server_micros = statistics.median(server for _, server in rounds) / effort.jobs * 1e6
    report.tables.append(_microseconds([one for one, _ in rounds], server_micros))
    python = statistics.median(sum(one.micros.values()) for one, _ in rounds)
    report.figures += [
        Figure("CPU of the worker's process", python, "µs/job"),
        Figure("CPU of the whole PostgreSQL server meanwhile", server_micros, "µs/job"),
    ]


def _microseconds(rounds: list[Dissected], server_micros: float) -> Table:
    parts = {part: statistics.median(one.micros[part] for one in rounds) for part in PARTS}
    rows: list[list[str | float]] = [[f"worker: {part}", micros] for part, micros in parts.items()]
    rows.sort(key=lambda row: -float(row[1]))
    rows += [["worker: all of it", sum(parts.values())], ["PostgreSQL: claim, complete and the rest", server_micros]]
    rows.append(["passed by the clock", statistics.median(one.seconds / one.jobs * 1e6 for one in rounds)])
    return Table("where the microseconds of one job go", ["part", "µs/job"], rows)


def _shares(dsn: str, effort: Effort, report: Report) -> None:
    """The worker against the bare loop, one and two connections, in turns"""
    for count, connections, processes in ((1, "one connection", "one worker process"), (2, "two", "two worker processes")):
        pairs = [
            (
                bare_rate(dsn, effort.jobs, count),
                drained_rate(dsn, [Submission("nothing", queue=f"share-{count}-{turn}")] * effort.jobs, 100, count),
            )
            for turn in range(effort.rounds)
        ]
        share = statistics.median(100 * worker / loop for loop, worker in pairs)
        report.figures += [
            Figure(f"bare claim + complete, {connections}", statistics.median(loop for loop, _ in pairs), "jobs/s"),
            Figure(f"no-op jobs, {processes}", statistics.median(worker for _, worker in pairs), "jobs/s"),
            Figure(f"{processes}, share of the bare loop", share, "%", "at least 75", share >= 75),
        ]
