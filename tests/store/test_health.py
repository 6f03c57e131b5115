"""What is said about the database itself: sizes, who keeps vacuum from its work, and how much WAL is written."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import psycopg

from faultline.store.reads.health import health, wal_bytes_per_second

if TYPE_CHECKING:
    from tests.driver import Driver


def test_every_table_is_told_with_its_size(queue: Driver) -> None:
    queue.enqueue()

    found = queue.run(health())

    assert {"open_jobs", "ledger", "journal", "steps", "workers"} <= {table.name for table in found.tables}
    assert all(table.table_bytes >= 0 and table.index_bytes >= 0 for table in found.tables)
    assert found.database_bytes > found.table_bytes > 0
    assert 1 <= found.connections <= found.connections_max


def test_who_holds_the_oldest_snapshot_is_named(queue: Driver, dsn: str) -> None:
    with psycopg.connect(dsn, application_name="a long report") as reader:
        reader.execute("set transaction isolation level repeatable read")
        reader.execute("select 1")
        for _ in range(5):
            queue.enqueue()

        # Other tests' sessions on this server may hold one as well: ours is the oldest only in a quiet one.
        found = queue.run(health())

        assert found.sees_sessions
        assert found.oldest_snapshot is not None
        assert found.oldest_snapshot.age >= 5
        assert found.idle_in_transaction == 1


def test_two_looks_make_a_rate_of_wal(queue: Driver) -> None:
    before = queue.run(health())
    for _ in range(10):
        queue.enqueue()
    after = queue.run(health())

    assert before.wal_bytes is not None
    assert after.wal_bytes is not None
    later = replace(after, at=before.at + timedelta(seconds=2))
    assert wal_bytes_per_second(before, later) == (after.wal_bytes - before.wal_bytes) / 2 > 0
    assert wal_bytes_per_second(None, after) is None
