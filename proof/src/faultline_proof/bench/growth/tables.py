"""What a job costs PostgreSQL while tables are large, by bare calls of the verbs. The cost is CPU of the backend."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from faultline.store import verbs
from faultline.store.database import Database, run_on
from faultline_proof.bench.growth.points import Loop, fill_ledger, fill_open, growth_of, points, settle
from faultline_proof.bench.report import Curve
from faultline_proof.bench.system import thread_cpu_seconds

if TYPE_CHECKING:
    import psycopg

    from faultline_proof.bench.growth.points import Effort
    from faultline_proof.bench.report import Point

_BACKLOG_GROWTH_MAX = 1.25
_ROUNDS = 5
_SOME = 4000


def backlog(dsn: str, effort: Effort) -> list[Curve]:
    """Claim cost over jobs that wait"""
    waiting = 0
    with Database(dsn).connect() as connection:

        def measure(at: int) -> Point:
            nonlocal waiting
            fill_open(connection, "backlog", at - waiting)
            settle(connection, "open_jobs")
            waiting = at
            return _rounds(connection, "backlog", _SOME, refill=True)

        found = points(effort.small((10_000, 100_000, 1_000_000, 5_000_000)), measure)
    growth = growth_of(found)
    goal = f"the last within {_BACKLOG_GROWTH_MAX:g} times the first"
    ok = None if effort.quick or growth is None else growth <= _BACKLOG_GROWTH_MAX
    return [Curve("claim, by backlog", "jobs that wait", "µs CPU/job", found, goal, ok)]


def _rounds(connection: psycopg.Connection, name: str, jobs: int, *, refill: bool = False) -> Point:
    """The median of some rounds, each of which claims and completes."""
    loop, claims, completes = Loop(connection, name), [], []
    for _ in range(_ROUNDS):
        claimed, granted = loop.claim(jobs)
        claims.append(claimed)
        completes.append(loop.complete(granted))
        if refill:
            fill_open(connection, name, jobs)
    return {
        "value": _median(claims, "cpu_micros"),
        "claim_time_micros": _median(claims, "time_micros"),
        "complete_cpu_micros": _median(completes, "cpu_micros"),
    }


def _median(found: list[Point], name: str) -> float:
    return float(statistics.median(one[name] for one in found))


def ledger(dsn: str, effort: Effort) -> list[Curve]:
    """Complete cost over jobs in the ledger, and what it takes to look for what is to be forgotten"""
    size = 0
    with Database(dsn).connect() as connection:

        def measure(at: int) -> Point:
            nonlocal size
            if at > size:
                fill_ledger(connection, at - size)
                size = at
            fill_open(connection, "ledger", _ROUNDS * _SOME)
            settle(connection, "open_jobs", "ledger")
            found = _rounds(connection, "ledger", _SOME)
            return {
                "value": found["complete_cpu_micros"],
                "claim_cpu_micros": found["value"],
                "prune_nothing_cpu_ms": _prune_nothing(connection),
            }

        places = (0, 100_000) if effort.quick else (0, 1_000_000, 10_000_000)
        found = points(places, measure)
    return [Curve("complete, by ledger", "jobs in the ledger", "µs CPU/job", found)]


def _prune_nothing(connection: psycopg.Connection) -> float:
    backend = connection.info.backend_pid
    cpu = thread_cpu_seconds(backend)
    run_on(connection, verbs.prune("ledger", older_than_seconds=86_400))
    return (thread_cpu_seconds(backend) - cpu) * 1000


def delayed(dsn: str, effort: Effort) -> list[Curve]:
    """Claim cost over the share of jobs that are due tomorrow"""
    due = _ROUNDS * _SOME

    def measure(at: int) -> Point:
        with Database(dsn).connect() as connection:
            name = f"delayed-{at}"
            fill_open(connection, name, due * at // (100 - at), delay_seconds=86_400)
            fill_open(connection, name, due)
            settle(connection, "open_jobs")
            return _rounds(connection, name, _SOME)

    found = points(effort.small((0, 50, 90, 99)), measure)
    return [Curve("claim, by share of delayed jobs", "% due tomorrow", "µs CPU/job", found)]


def priorities(dsn: str, effort: Effort) -> list[Curve]:
    """Claim cost over the number of priorities"""

    def measure(at: int) -> Point:
        with Database(dsn).connect() as connection:
            name = f"priorities-{at}"
            fill_open(connection, name, 100_000, spread=at)
            settle(connection, "open_jobs")
            return _rounds(connection, name, _SOME)

    found = points(effort.small((1, 10, 100)), measure)
    return [Curve("claim, by number of priorities", "priorities", "µs CPU/job", found)]


CURVES = (backlog, ledger, delayed, priorities)
