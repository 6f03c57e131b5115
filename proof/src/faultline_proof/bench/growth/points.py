"""What the curves of `growth` share: how much is done, points that fail alone, tables that are filled fast."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from faultline.core.model import bounds_after
from faultline.store import verbs
from faultline.store.database import run_on
from faultline_proof.bench.protocol import ARGS
from faultline_proof.bench.system import thread_cpu_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import psycopg

    from faultline.core.model import Bound, Lease
    from faultline_proof.bench.report import Point


@dataclass(frozen=True, slots=True)
class Effort:
    quick: bool = False

    def jobs(self, number: int) -> int:
        return max(number // 5, 500) if self.quick else number

    def small(self, places: Sequence[int], most: int = 2) -> Sequence[int]:
        """All places of a curve, or only its small end."""
        return places[:most] if self.quick else places


def points(places: Sequence[Any], measure: Callable[[Any], Point]) -> list[Point]:
    found = []
    for at in places:
        try:
            found.append({"at": at} | measure(at))
        except Exception as error:  # noqa: BLE001 - the other points are worth having
            found.append({"at": at, "value": None, "missing": repr(error)})
    return found


def growth_of(found: Sequence[Point]) -> float | None:
    """How many times the first value the last one is; None where one of them is missing."""
    first, last = found[0]["value"], found[-1]["value"]
    return last / first if first and last else None


def fill_open(connection: psycopg.Connection, name: str, rows: int, *, delay_seconds: float = 0.0, spread: int = 1) -> None:
    """Put waiting jobs straight into the table, spread over so many priorities. All guards and indexes are in place."""
    connection.execute(
        "insert into faultline.open_jobs (id, created_at, next_run_at, lease_seconds, priority, max_attempts, keep_args,"
        " queue, task, args)"
        " select faultline.new_id(n), now(), now() + make_interval(secs => %s) + n * interval '1 microsecond', 30,"
        " n %% %s, 5, true, %s, 'nothing', %s from generate_series(1, %s) n",
        (delay_seconds - 10, spread, name, ARGS, rows),
    )


def fill_ledger(connection: psycopg.Connection, rows: int) -> None:
    """Put finished jobs straight into the ledger, in the name of the verb that its guard asks for."""
    with connection.transaction():
        connection.execute("select set_config('faultline.verb', 'complete', true)")
        connection.execute(
            "insert into faultline.ledger (job_id, fencing_token, created_at, claimed_at, finished_at, priority, attempt,"
            " max_attempts, owner, queue, task, args)"
            " select faultline.new_id(n), 1, now(), now(), clock_timestamp(), 0, 1, 5, '0123456789abcdef01/' || n / 500,"
            " 'old', 'nothing', %s from generate_series(1, %s) n",
            (ARGS, rows),
        )


def settle(connection: psycopg.Connection, *names: str) -> None:
    """Vacuum, so that a fresh table is like one of some age, and begin every point behind a checkpoint."""
    for name in names:
        connection.execute(f"vacuum (analyze) faultline.{name}".encode())
    connection.execute("checkpoint")


class Loop:
    """Claims and completes on one connection, with bounds as a worker has them, and takes the cost of each apart."""

    def __init__(self, connection: psycopg.Connection, name: str, batch: int = 500) -> None:
        self._connection = connection
        self._name = name
        self._batch = batch
        self._calls = 0
        self._bounds: dict[int, Bound] = {}

    def claim(self, jobs: int) -> tuple[Point, list[list[Lease]]]:
        granted: list[list[Lease]] = []

        def call() -> int:
            self._calls += 1
            bounds = [*self._bounds.values()]
            owner = f"{self._name}/{self._calls}"
            leases = run_on(self._connection, verbs.claim(self._name, owner=owner, max_jobs=self._batch, bounds=bounds))
            self._bounds.update(bounds_after(leases))
            granted.append(leases)
            return len(leases)

        return _cost(self._connection, call, jobs), granted

    def complete(self, granted: list[list[Lease]]) -> Point:
        left = list(granted)

        def call() -> int:
            leases = left.pop(0)
            run_on(self._connection, verbs.complete(leases, ["null"] * len(leases)))
            return len(leases)

        return _cost(self._connection, call, sum(map(len, granted)))


def _cost(connection: psycopg.Connection, call: Callable[[], int], jobs: int) -> Point:
    """CPU of the backend and time, per job."""
    backend = connection.info.backend_pid
    cpu, begun, done = thread_cpu_seconds(backend), time.perf_counter(), 0
    while done < jobs:
        some = call()
        if not some:
            raise RuntimeError(f"only {done} of {jobs} jobs were there")
        done += some
    seconds, used = time.perf_counter() - begun, thread_cpu_seconds(backend) - cpu
    return {"cpu_micros": used / done * 1e6, "time_micros": seconds / done * 1e6}
