"""Processes with verbs at random, while somebody looks: no limit is ever exceeded, no permit is lost, and all drains."""

from __future__ import annotations

import collections
import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from faultline.store.database import run_on
from faultline.store.reads import invariants
from tests.limits.hammer import DECLARED, GROUP_LIMIT, QUEUE, QUEUE_LIMIT, STRICT

if TYPE_CHECKING:
    from collections.abc import Iterator

_RUNNING = "select group_key, count(*) from faultline.open_jobs where queue = %s and state = 'running' group by 1"
#: Of a strict group: those that run, and those that keep their place to be tried again.
_STRICT = (
    "select count(*) from faultline.open_jobs where queue = %s and group_key = %s and state in ('queued', 'running')"
    " and (state = 'running' or has_permit)"
)
#: So long may nothing be granted while jobs wait: longer than a lease, and than the minute after which `maintain_limits`
#: hears all.
_STUCK_SECONDS = 90.0
#: So many of each group are drained. The others are cancelled: a limit of one makes a thousand jobs take a minute.
_DRAINED = 20
_CANCEL_MOST = """
select count(faultline.cancel(id)) from (
  select id, row_number() over (partition by group_key order by id) as number
  from faultline.open_jobs where queue = %s and state = 'queued'
) waiting where number > %s
"""


def watch(connection: psycopg.Connection, *, steady: bool) -> Iterator[str]:
    """What is wrong in one snapshot."""
    with connection.transaction():
        connection.execute("set transaction isolation level repeatable read")
        running: dict[str | None, int] = dict(connection.execute(_RUNNING, (QUEUE,)).fetchall())
        (strict,) = connection.execute(_STRICT, (QUEUE, STRICT)).fetchone() or (0,)
        if steady and sum(running.values()) > QUEUE_LIMIT:
            yield f"{sum(running.values())} of the queue run: {running}"
        for group, number in running.items():
            if steady and group is not None and number > GROUP_LIMIT:
                yield f"{number} of {group} run"
        if strict > 1:
            yield f"{strict} of {STRICT} run or are to be tried again"
        for name in invariants.names():
            broken = run_on(connection, invariants.invariant(name)) if "permit" in name else None
            if broken is not None:
                yield f"{name}: {broken.rows}"


def drain(connection: psycopg.Connection) -> str:
    """Whoever claims again and again, with upkeep beside, gets everything. What is left, if something is."""
    connection.execute(_CANCEL_MOST, (QUEUE, _DRAINED))
    give_up = time.monotonic() + _STUCK_SECONDS
    claims, left = 0, 1
    while time.monotonic() < give_up:
        claims += 1
        # As workers do beside their claims.
        connection.execute("select count(*) from faultline.reap(10000, false)")
        connection.execute("select faultline.maintain_limits()")
        owner = f"drain/{claims}"
        rows = connection.execute(
            "select job_id, fencing_token from faultline.claim(%s, %s, 500)", (QUEUE, owner)
        ).fetchall()
        if rows:
            give_up = time.monotonic() + _STUCK_SECONDS
            leases = ([job_id for job_id, _ in rows], [token for _, token in rows], [owner] * len(rows))
            connection.execute("select * from faultline.complete(%s::uuid[], %s::bigint[], %s::text[])", leases)
        found = connection.execute(
            "select count(*) from faultline.open_jobs where state in ('queued', 'running')"
        ).fetchone()
        (left,) = found or (0,)
        if not left:
            return ""
        if not rows:
            time.sleep(0.05)
    shown = (
        "select state, group_key, in_group, has_permit, next_run_at, group_at from faultline.open_jobs"
        " where state in ('queued', 'running') limit 5"
    )
    return f"{left} are left: {connection.execute(shown).fetchall()}"


def hammered(dsn: str, seconds: float, *, steady: bool, processes: int = 6) -> dict[str, Any]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("select faultline.declare_queue(%s, %s::jsonb)", (QUEUE, json.dumps(DECLARED)))
        how = "steady" if steady else "changing"
        command = [sys.executable, "-m", "tests.limits.hammer", dsn]
        players = [
            subprocess.Popen([*command, str(seed), str(seconds), how], stdout=subprocess.PIPE)
            for seed in range(1, processes + 1)
        ]
        looks = 0
        wrong: list[str] = []
        try:
            while any(player.poll() is None for player in players):
                looks += 1
                wrong += watch(connection, steady=steady)
                time.sleep(0.01)
            told = [json.loads(player.communicate()[0]) for player in players]
        finally:
            for player in players:
                player.kill()
                player.wait()
        counts: collections.Counter[str] = sum(map(collections.Counter, told), collections.Counter())
        left = drain(connection)
        wrong += watch(connection, steady=False)
        return {"looks": looks, "wrong": wrong[:3], "left": left, "counts": dict(counts)}


#: What sessions do to each other that is nobody's fault: FL002 comes too late, 55P03 did not wait.
_HARMLESS = ("error FL002", "error FL004", "error 55P03")


def judge(found: dict[str, Any]) -> None:
    errors = {told: times for told, times in found["counts"].items() if told.startswith("error") and told not in _HARMLESS}
    assert not found["wrong"], found
    assert not found["left"], found
    assert not errors, found
    assert found["looks"] > 20, found
    assert found["counts"]["granted"] > 50, found


def test_no_limit_is_exceeded_and_no_permit_is_lost_whatever_sessions_do(dsn: str) -> None:
    judge(hammered(dsn, 10.0, steady=True))


@pytest.mark.long
def test_a_minute_with_limits_that_change(dsn: str) -> None:
    judge(hammered(dsn, 60.0, steady=False))
