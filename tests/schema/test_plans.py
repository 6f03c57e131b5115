"""A verb costs the same in a session that began when the table was empty. Counted in rows read, not in time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from faultline.core.model import Submission, bounds_after
from faultline.store import verbs

if TYPE_CHECKING:
    import psycopg

    from tests.driver import Driver, Sessions
FEW = 400


BATCH = 200


def test_a_claim_passes_by_the_dead_of_its_own_moment(queue: Driver, sessions: Sessions) -> None:
    """All that is enqueued together is due at the same moment, and while a snapshot is held none of it can be vacuumed."""
    queue.run(verbs.enqueue_many([Submission("t")] * 20 * BATCH))
    witness = sessions.open().connection
    with witness.transaction():
        witness.execute("set transaction isolation level repeatable read")
        witness.execute("select from faultline.open_jobs limit 1")
        leases = queue.claim(BATCH)
        for _ in range(18):
            queue.complete(*leases)
            leases = queue.claim(BATCH, bounds=[*bounds_after(leases).values()])

        before = rows_read(queue)
        assert len(queue.claim(BATCH, bounds=[*bounds_after(leases).values()])) == BATCH

        assert rows_read(queue) - before < 5 * BATCH


def test_counting_a_large_backlog_reads_little_and_says_that_it_is_an_estimate(queue: Driver, sessions: Sessions) -> None:
    """2,000 pages are drawn, whatever the table has, and as much is counted as was asked for."""
    jobs, exact = 150_000, 5_000
    fill(sessions.open().connection, "default", jobs)
    fill(sessions.open().connection, "mail", FEW)
    page_jobs = jobs / queue.value("select pg_relation_size('faultline.open_jobs') / 8192")

    before = rows_read(queue)
    assert queue.value("select faultline.sample(%s)", exact)

    assert rows_read(queue) - before < 2_500 * page_jobs + 4 * exact
    (crowded, small) = queue.connection.execute("select due, estimated from faultline.samples order by queue").fetchall()
    assert crowded[0] == pytest.approx(jobs, rel=0.2)
    assert crowded[1] == ["due", "delayed"]
    assert small == (FEW, [])


def test_a_large_submission_takes_no_longer_in_a_session_that_has_enqueued_before(queue: Driver) -> None:
    """A plan that PostgreSQL keeps knows nothing of the arrays: it must not compare every job with every other. In time,
    since nothing is read.
    """
    first = seconds_to_enqueue(queue, "first", 20_000)
    for _ in range(12):
        seconds_to_enqueue(queue, "warm", 1)

    again = min(seconds_to_enqueue(queue, "again", 20_000) for _ in range(2))

    assert again < 2 * first


def seconds_to_enqueue(queue: Driver, key: str, jobs: int) -> float:
    begun = time.monotonic()
    queue.run(verbs.enqueue_many([Submission("t", idempotency_key=f"{key} {begun} {n}") for n in range(jobs)]))
    return time.monotonic() - begun


def fill(connection: psycopg.Connection, name: str, rows: int) -> None:
    """Put waiting jobs straight into the table, past guards and statistics.

    From another session: in the one that is looked at, the setting would throw away the plans that are looked at.
    """
    with connection.transaction():
        connection.execute("set local session_replication_role = replica")
        connection.execute(
            "insert into faultline.open_jobs (id, created_at, next_run_at, lease_seconds, priority, max_attempts, keep_args,"
            " queue, task, args) select gen_random_uuid(), now(), now() + n * interval '1 microsecond', 30, 0, 5, true,"
            " %s, 't', '{}' from generate_series(1, %s) n",
            (name, rows),
        )


def rows_read(queue: Driver) -> int:
    """Rows and index entries of the protocol's tables that were read so far."""
    queue.connection.execute("select pg_stat_force_next_flush()")
    queue.value("select 1")
    return int(
        queue.value(
            "select (select sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) from pg_stat_user_tables"
            " where schemaname = 'faultline')"
            " + (select sum(idx_tup_read) from pg_stat_user_indexes where schemaname = 'faultline')"
        )
    )
