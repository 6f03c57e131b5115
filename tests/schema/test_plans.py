"""A verb costs the same in a session that began when the table was empty. Counted in rows read, not in time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from faultline.core.model import Failure, Submission, bounds_after
from faultline.store import verbs

if TYPE_CHECKING:
    from collections.abc import Callable

    import psycopg

    from faultline.core.model import Lease
    from tests.driver import Driver, Sessions

BACKLOG = 20_000
FEW = 400
#: The newest pages of a table are not summarised yet, so they are read.
LAST_RANGE = 4000


def known_id(queue: Driver, lease: Lease) -> None:
    queue.run(verbs.enqueue_many([Submission("t", id=lease.job_id)]))


def cancel_and_retry(queue: Driver, lease: Lease) -> None:
    queue.run(verbs.cancel(lease.job_id))
    queue.run(verbs.retry(lease.job_id))


def stale_renew(queue: Driver, lease: Lease) -> None:
    queue.release(lease)
    queue.renew(lease)


CALLS: dict[str, Callable[[Driver, Lease], Any]] = {
    "complete": lambda q, lease: q.complete(lease),
    "complete twice": lambda q, lease: (q.complete(lease), q.complete(lease)),
    "renew": lambda q, lease: q.renew(lease),
    "stale renew": stale_renew,
    "fail": lambda q, lease: q.fail(lease, delay=3600),
    "release": lambda q, lease: q.release(lease, delays=[3600]),
    "mark_started": lambda q, lease: q.mark_started(lease),
    "fence": lambda q, lease: q.run(verbs.fence(lease)),
    "step": lambda q, lease: q.run(verbs.step(lease, "s", 1)),
    "progress": lambda q, lease: q.run(verbs.progress(lease, 1)),
    "cancel and retry": cancel_and_retry,
    "known id": known_id,
    "reap": lambda q, _: q.reap(),
    "claim": lambda q, _: q.claim(3),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_session_from_before_the_backlog_reads_only_what_it_needs(queue: Driver, sessions: Sessions, call: str) -> None:
    queue.enqueue()
    queue.connection.execute("vacuum analyze faultline.open_jobs")
    for _ in range(6):
        queue.enqueue(priority=-1)
        CALLS[call](queue, queue.claim_one())
    fill(sessions.open().connection, "default", BACKLOG)
    queue.enqueue(priority=-2)
    lease = queue.claim_one()

    before = rows_read(queue)
    CALLS[call](queue, lease)

    assert rows_read(queue) - before < FEW


BATCH = 200
BATCHES: dict[str, Callable[[Driver, list[Lease]], Any]] = {
    "complete": lambda q, leases: q.complete(*leases),
    "renew": lambda q, leases: q.renew(*leases),
    "fail": lambda q, leases: q.run(verbs.fail(leases, [Failure("boom", "retry", 3600)] * len(leases))),
    "release": lambda q, leases: q.release(*leases, delays=[3600] * len(leases)),
    "mark_started": lambda q, leases: q.mark_started(*leases),
    "stale renew": lambda q, leases: (q.complete(*leases), q.renew(*leases)),
    "complete twice": lambda q, leases: (q.complete(*leases), q.complete(*leases)),
    "known ids": lambda q, leases: q.run(verbs.enqueue_many([Submission("t", id=one.job_id) for one in leases])),
    "claim": lambda q, _: q.claim(BATCH),
    "reap": lambda q, _: q.reap(),
}


@pytest.mark.parametrize("call", BATCHES)
def test_a_table_that_was_vacuumed_while_it_was_empty_is_not_walked(queue: Driver, sessions: Sessions, call: str) -> None:
    """A queue that was worked off and vacuumed has pages and no rows. The planner takes it to stay so, however much comes in
    afterwards: until the next analyze, a minute later, it would read all of the table for every batch.
    """
    other = sessions.open().connection
    fill(other, "default", BATCH)
    queue.complete(*queue.claim(BATCH))
    other.execute("vacuum analyze faultline.open_jobs")
    fill(other, "default", BACKLOG)
    leases = queue.claim(BATCH)

    before = rows_read(queue)
    BATCHES[call](queue, leases)

    assert rows_read(queue) - before < 20 * BATCH


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


@pytest.mark.parametrize("what", ["ledger", "failed", "journal", "keys"])
def test_pruning_where_nothing_is_old_reads_little(queue: Driver, what: str) -> None:
    with queue.connection.transaction():
        queue.connection.execute("set local session_replication_role = replica")
        queue.connection.execute(FILL[what].encode())
    for table in ("ledger", "open_jobs", "journal", "keys"):
        queue.connection.execute(f"vacuum analyze faultline.{table}".encode())

    before = rows_read(queue)
    assert queue.run(verbs.prune(what, older_than_seconds=3600)) == 0

    assert rows_read(queue) - before < LAST_RANGE


@pytest.mark.parametrize("what", ["ledger", "journal", "keys"])
def test_pruning_where_old_rows_lay_once_reads_little(queue: Driver, what: str) -> None:
    """Some years on, every page has held rows of all ages."""
    old = FILL[what].replace("now()", "now() - interval '2 hours'")
    # A young row behind them, so that vacuum keeps their pages.
    last = FILL[what].replace("(1, 20000)", "(20001, 20001)")
    young = FILL[what].replace("(1, 20000)", "(20002, 40000)")
    queue.connection.execute("set session_replication_role = replica")
    queue.connection.execute(old.encode())
    queue.connection.execute(last.encode())
    queue.connection.execute(f"vacuum faultline.{what}".encode())
    while queue.run(verbs.prune(what, older_than_seconds=3600)):
        pass
    queue.connection.execute(f"vacuum faultline.{what}".encode())
    queue.connection.execute(young.encode())

    before = rows_read(queue)
    assert queue.run(verbs.prune(what, older_than_seconds=3600)) == 0

    assert rows_read(queue) - before < LAST_RANGE


FILL = {
    "ledger": "insert into faultline.ledger select gen_random_uuid(), 1, now(), now(), now(), 0, 1, 5, 'w/1', 'default',"
    " 't', null, '{}', null from generate_series(1, 20000)",
    "failed": "insert into faultline.open_jobs (id, created_at, next_run_at, lease_seconds, priority, max_attempts,"
    " keep_args, queue, task, args, state, finished_at) select gen_random_uuid(), now(), now(), 30, 0, 5, true, 'default',"
    " 't', '{}', 'failed', now() from generate_series(1, 20000)",
    "journal": "insert into faultline.journal (at, event) select now(), 'retried' from generate_series(1, 20000)",
    "keys": "insert into faultline.keys select n::text, gen_random_uuid(), '', now() from generate_series(1, 20000) n",
}


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
