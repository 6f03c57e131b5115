"""The verbs called bare: nothing is decoded, held or run. What is left is PostgreSQL and the wire, the floor under a worker.

Each connection has a process of its own, so that no interpreter is shared; all of them do the same verb at the same time.
"""

from __future__ import annotations

import multiprocessing
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from faultline.core.ids import Ids
from faultline.core.model import Bound, Submission
from faultline.store import verbs
from faultline.store.database import Database
from faultline_proof.bench.protocol import ARGS
from faultline_proof.bench.system import server_cpu_seconds, thread_cpu_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.synchronize import Barrier

    import psycopg

    from faultline.core.model import Lease
    from faultline.store.statement import Rows, Statement

VERBS = ("enqueue", "claim", "complete")
_PATIENCE_SECONDS = 600.0
_JOB_ID, _NEXT_RUN_AT = 0, 9


@dataclass(frozen=True, slots=True)
class Called:
    """What one connection did with one verb."""

    verb: str
    batch: int
    jobs: int
    seconds: float
    #: CPU of its own backend, and of everything else in the server meanwhile.
    backend_seconds: float
    rest_seconds: float

    @property
    def micros(self) -> float:
        return self.seconds / self.jobs * 1e6

    @property
    def backend_micros(self) -> float:
        return self.backend_seconds / self.jobs * 1e6


def call(dsn: str, batches: Sequence[tuple[int, int]], connections: int) -> list[Called]:
    """All three verbs for each (batch size, jobs per connection), on so many connections at once."""
    context = multiprocessing.get_context("spawn")
    barrier, answers = context.Barrier(connections), context.Queue()
    children = [
        context.Process(target=_child, args=(dsn, list(batches), f"bare-{number}", barrier, answers), daemon=True)
        for number in range(connections)
    ]
    for child in children:
        child.start()
    try:
        found: list[Called] = []
        for _ in children:
            answer = answers.get(timeout=_PATIENCE_SECONDS)
            if isinstance(answer, Exception):
                raise answer
            found += answer
    finally:
        for child in children:
            child.join(5)
            child.kill()
    return found


def _child(dsn: str, batches: list[tuple[int, int]], name: str, barrier: Barrier, answers: Any) -> None:
    try:
        with Database(dsn).connect() as connection:
            found = [one for batch, jobs in batches for one in _verbs(connection, name, batch, jobs, barrier)]
    except Exception as error:  # noqa: BLE001 - told by whoever waits for the answer
        barrier.abort()
        answers.put(RuntimeError(f"a bare loop has failed: {error!r}"))
    else:
        answers.put(found)


def _verbs(connection: psycopg.Connection, name: str, batch: int, jobs: int, barrier: Barrier) -> list[Called]:
    name, ids, calls = f"{name}-{batch}", Ids(), jobs // batch
    submissions = [Submission("bench", ARGS, queue=name)] * batch
    enqueues = [verbs.enqueue_many(submissions, ids) for _ in range(calls)]

    def claim(number: int, before: list[Rows]) -> Statement[list[Lease]]:
        # The place where the live work starts, as a worker passes it.
        bounds = [Bound(0, *max((row[_NEXT_RUN_AT], row[_JOB_ID]) for row in before[-1]))] if before else []
        return verbs.claim(name, owner=f"{name}/{number}", max_jobs=batch, bounds=bounds)

    enqueued, _ = _timed(connection, "enqueue", batch, calls, lambda number, _: enqueues[number], barrier)
    claimed, rows = _timed(connection, "claim", batch, calls, claim, barrier)
    leases = [claim(number, []).read(found) for number, found in enumerate(rows)]
    completes = [verbs.complete(some, ["null"] * len(some)) for some in leases]
    completed, _ = _timed(connection, "complete", batch, calls, lambda number, _: completes[number], barrier)
    return [enqueued, claimed, completed]


def _timed(
    connection: psycopg.Connection,
    verb: str,
    batch: int,
    calls: int,
    make: Callable[[int, list[Rows]], Statement[Any]],
    barrier: Barrier,
) -> tuple[Called, list[Rows]]:
    backend = connection.info.backend_pid
    rows: list[Rows] = []
    barrier.wait(_PATIENCE_SECONDS)
    server, cpu, begun = server_cpu_seconds(backend), thread_cpu_seconds(backend), time.perf_counter()
    for number in range(calls):
        statement = make(number, rows)
        cursor = connection.execute(statement.sql.encode(), statement.params, binary=statement.binary)
        rows.append(cursor.fetchall())
    seconds, own = time.perf_counter() - begun, thread_cpu_seconds(backend) - cpu
    rest = server_cpu_seconds(backend) - server - own
    return Called(verb, batch, calls * batch, seconds, own, rest), rows
