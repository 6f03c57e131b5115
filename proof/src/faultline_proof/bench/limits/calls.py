"""Bare calls on one connection: what groups and limits cost PostgreSQL in CPU, WAL and entries read."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from faultline.core.ids import Ids
from faultline.core.model import Submission
from faultline.store import verbs
from faultline.store.database import Database, run_on
from faultline.store.verbs import limit
from faultline_proof.bench.growth.points import settle
from faultline_proof.bench.protocol import ARGS, Figure
from faultline_proof.bench.system import thread_cpu_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import psycopg

    from faultline.core.model import Lease
    from faultline_proof.bench.limits.effort import Effort

_BATCH, _CLAIMED = 500, 100
_PLAIN, _GROUPS = "plain", "groups"
#: What a job of the hot group is known by.
_HOT = '{"hot": true}'
_FILL_GROUP = """
with filled as (
  insert into faultline.open_jobs (
    id, created_at, next_run_at, lease_seconds, priority, max_attempts, keep_args, queue, task, args,
    group_key, in_group, group_at
  )
  select faultline.new_id(n), now(), '9999-01-01Z', 30, 0, 5, true, %(queue)s, 'nothing', %(args)s,
    %(group)s || case when %(groups)s > 1 then (n %% %(groups)s)::text else '' end, true,
    now() + n * interval '1 microsecond'
  from generate_series(1, %(jobs)s) n
  returning group_key
)
insert into faultline.group_events (queue, group_count, group_keys, priorities, run_ats)
select %(queue)s, 1, array[group_key], array[0], array[now()] from filled group by group_key
"""
_ENTRIES_READ = """
select (select sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) from pg_stat_user_tables where schemaname = 'faultline')
  + (select sum(idx_tup_read) from pg_stat_user_indexes where schemaname = 'faultline')
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one job."""

    micros: float
    wal_bytes: float
    entries: float


class Calls:
    """The verbs on one connection, as fast as it goes."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self.connection = connection
        self._ids = Ids()
        self._claims = 0

    def enqueue(self, queue: str, jobs: int, groups: int = 0) -> None:
        for first in range(0, jobs, _BATCH):
            numbers = range(first, min(first + _BATCH, jobs))
            keys = [f"g{n % groups}" if groups else None for n in numbers]
            some = [Submission("nothing", ARGS, queue=queue, group=key) for key in keys]
            run_on(self.connection, verbs.enqueue_many(some, self._ids))

    def claim(self, queue: str, most: int) -> list[Lease]:
        self._claims += 1
        return run_on(self.connection, verbs.claim(queue, owner=f"calls/{self._claims}", max_jobs=most))

    def complete(self, leases: Sequence[Lease]) -> None:
        """As a worker does, which claims again at once."""
        run_on(self.connection, verbs.complete(leases, ["null"] * len(leases), claims=True))

    def drain(self, queue: str, jobs: int, most: int = _BATCH) -> int:
        done = 0
        while done < jobs and (leases := self.claim(queue, most)):
            self.complete(leases)
            done += len(leases)
        return done

    def cost(self, call: Callable[[], object], jobs: int) -> Cost:
        backend = self.connection.info.backend_pid
        entries, wal, cpu = self._entries(), self._wal(), thread_cpu_seconds(backend)
        call()
        cpu, wal = thread_cpu_seconds(backend) - cpu, self._wal() - wal
        return Cost(cpu / jobs * 1e6, wal / jobs, (self._entries() - entries) / jobs)

    def _wal(self) -> float:
        return self.number("select pg_current_wal_insert_lsn() - '0/0'::pg_lsn")

    def _entries(self) -> float:
        self.connection.execute("select pg_stat_force_next_flush()")
        self.connection.execute("select 1")
        return self.number(_ENTRIES_READ)

    def number(self, query: str) -> float:
        row = self.connection.execute(query.encode()).fetchone()
        return float(row[0]) if row else float("nan")


def groups(dsn: str, effort: Effort) -> list[Figure]:
    """Jobs of 10,000 groups at limit 1 beside plain ones: enqueue, claim and complete in batches of 500"""
    found: dict[tuple[str, str], list[Cost]] = {}
    with Database(dsn).connect() as connection:
        calls = Calls(connection)
        run_on(connection, limit.declare_queue(_GROUPS, {"each_group": {"concurrency": 1}}))
        for turn in range(effort.rounds + 1):
            settle(connection, "open_jobs", "groups", "group_events")
            for queue, number in ((_PLAIN, 0), (_GROUPS, effort.groups)):
                costs = {
                    "enqueue": calls.cost(lambda q=queue, n=number: calls.enqueue(q, effort.calls, n), effort.calls),  # type: ignore[misc]
                    "run": calls.cost(lambda q=queue: calls.drain(q, effort.calls), effort.calls),  # type: ignore[misc]
                }
                for verb, cost in costs.items():
                    if turn:  # the first one makes plans
                        found.setdefault((queue, verb), []).append(cost)
    return [figure for verb in ("enqueue", "run") for figure in _compared(verb, found[_PLAIN, verb], found[_GROUPS, verb])]


def _compared(verb: str, plain: list[Cost], grouped: list[Cost]) -> list[Figure]:
    words = {"enqueue": "bulk enqueue", "run": "claim + complete in batches of 500"}[verb]
    ratio = statistics.median(more.micros / less.micros for less, more in zip(plain, grouped, strict=True))
    goal, good = ("at most 2", ratio <= 2) if verb == "run" else ("", None)
    figures = []
    for name, costs in (("plain jobs", plain), ("10,000 groups at limit 1", grouped)):
        figures += [
            Figure(f"{words}, {name}: CPU of PostgreSQL", statistics.median(one.micros for one in costs), "µs/job"),
            Figure(f"{words}, {name}: WAL", statistics.median(one.wal_bytes for one in costs), "B/job"),
            Figure(f"{words}, {name}: entries read", statistics.median(one.entries for one in costs), "/job"),
        ]
    return [*figures, Figure(f"{words}: CPU in groups, times plain jobs", ratio, "x", goal, good)]


def hot(dsn: str, effort: Effort) -> list[Figure]:
    """A group of a million jobs before 1,000 groups of 10: until all the cold ones are done, by claims of 100"""
    figures: list[Figure] = []
    with Database(dsn).connect() as connection:
        calls = Calls(connection)
        run_on(connection, limit.declare_queue(_GROUPS, {"each_group": {}}))
        for _ in range(20):  # it has polled the queue while it was empty
            calls.claim(_GROUPS, _CLAIMED)
        with Database(dsn).connect() as other:
            _fill(other, "hot", effort.hot, 1, _HOT)
            settle(other, "open_jobs", "groups")
        for words, fields in (("by turns", {}), ("at limit 1", {"concurrency": 1})):
            run_on(connection, limit.declare_queue(_GROUPS, {"each_group": fields}))
            calls.drain(_GROUPS, 10 * _CLAIMED if not fields else 10, _CLAIMED)  # the hot ones alone
            calls.enqueue(_GROUPS, 10 * effort.cold_groups, effort.cold_groups)
            seconds, times = _until_cold(calls, 10 * effort.cold_groups)
            p99 = sorted(times)[int(len(times) * 0.99)] * 1000
            name = f"{effort.cold_groups:,} groups of 10 beside {effort.hot:,} of one, {words}"
            figures += [
                Figure(f"{name}: all done", seconds, "s", "under 1", seconds < 1),
                Figure(f"{name}: claim(100), p50", statistics.median(times) * 1000, "ms"),
                Figure(f"{name}: claim(100), p99", p99, "ms", "under 20", p99 < 20),
            ]
    return figures


def _until_cold(calls: Calls, cold: int) -> tuple[float, list[float]]:
    """How long until the last job of a cold group is completed, and each claim took."""
    begun, times = time.perf_counter(), []
    while cold > 0:
        asked = time.perf_counter()
        leases = calls.claim(_GROUPS, _CLAIMED)
        times.append(time.perf_counter() - asked)
        if not leases:
            raise RuntimeError(f"{cold} jobs of cold groups are left, and none is granted")
        calls.complete(leases)
        cold -= sum(lease.args != _HOT for lease in leases)
    return time.perf_counter() - begun, times


def held(dsn: str, effort: Effort) -> list[Figure]:
    """Claim and complete jobs of groups while somebody holds a snapshot: at its beginning, and many jobs later"""
    part = effort.held // 6
    with Database(dsn).connect() as connection, Database(dsn).connect() as holder:
        calls = Calls(connection)
        run_on(connection, limit.declare_queue(_GROUPS, {"queue": {"concurrency": 1_000}, "each_group": {"concurrency": 1}}))
        _fill(connection, "g", effort.held + 3 * part, effort.cold_groups)
        settle(connection, "open_jobs", "groups")
        calls.drain(_GROUPS, part, _CLAIMED)
        holder.execute("begin isolation level repeatable read")
        holder.execute("select count(*) from faultline.groups")
        before = calls.cost(lambda: calls.drain(_GROUPS, part, _CLAIMED), part)
        calls.drain(_GROUPS, effort.held - 2 * part, _CLAIMED)
        after = calls.cost(lambda: calls.drain(_GROUPS, part, _CLAIMED), part)
        holder.execute("rollback")
    ratio = after.micros / before.micros
    return [
        Figure("jobs of groups under a snapshot just taken: CPU of PostgreSQL", before.micros, "µs/job"),
        Figure(f"the same {effort.held - part:,} jobs later", after.micros, "µs/job"),
        Figure("the second, times the first", ratio, "x", "at most 1.2", ratio <= 1.2),
        Figure("entries read, at first", before.entries, "/job"),
        Figure("entries read, later", after.entries, "/job"),
    ]


def maintain_limits(dsn: str, effort: Effort) -> list[Figure]:
    """Counting all permits anew, as upkeep does once a minute: for how long nobody can claim"""
    with Database(dsn).connect() as connection:
        calls = Calls(connection)
        run_on(connection, limit.declare_queue(_GROUPS, {"queue": {"concurrency": 1_000_000}, "each_group": {}}))
        _fill(connection, "g", effort.open_jobs, effort.groups)
        settle(connection, "open_jobs", "groups")
        while len(calls.claim(_GROUPS, effort.running)) < effort.running:
            pass
        while calls.number("select count(*) from faultline.group_events"):
            run_on(connection, limit.maintain_limits([_GROUPS]))  # it hears of the groups
        times = []
        for turn in range(7):
            connection.execute("update faultline.limited_queues set all_events_applied_at = '-infinity'")
            begun = time.perf_counter()
            run_on(connection, limit.maintain_limits([_GROUPS]))
            if turn > 1:  # the first ones make plans
                times.append((time.perf_counter() - begun) * 1000)
    name = f"maintain_limits with {effort.groups:,} groups, {effort.running:,} running, {effort.open_jobs:,} open"
    return [Figure(name, statistics.median(times), "ms", "under 20", statistics.median(times) < 20)]


def _fill(connection: psycopg.Connection, group: str, jobs: int, groups: int, args: str = ARGS) -> None:
    """Put waiting jobs of groups straight into the table, with the events that tell claims of them."""
    words = {"queue": _GROUPS, "args": args, "group": group, "groups": groups, "jobs": jobs}
    connection.execute(_FILL_GROUP, words)
