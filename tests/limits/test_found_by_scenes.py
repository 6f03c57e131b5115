"""What the explorer's scenes found once, kept as plain stories."""

from __future__ import annotations

import json

import psycopg

from faultline.store.database import run_on
from faultline.store.reads import invariants


def test_a_claim_that_looks_at_a_group_twice_counts_each_job_once(dsn: str) -> None:
    """It took the job that it had just granted for another one: a permit was lost."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "select faultline.declare_queue('q', %s::jsonb)", (json.dumps({"each_group": {"concurrency": 2}}),)
        )
        job = json.dumps([{"task": "t", "queue": "q", "group": "g"}])
        connection.execute("select * from faultline.enqueue_many(%s)", (job,))

        granted = connection.execute("select job_id from faultline.claim('q', 'w/1', 10)").fetchall()

        assert len(granted) == 1
        assert connection.execute("select holding from faultline.limited_queues").fetchall() == [(1,)]
        assert run_on(connection, invariants.invariant("permits_are_counted")) is None


def _enqueue(connection: psycopg.Connection, *groups: str) -> None:
    jobs = json.dumps([{"task": "t", "queue": "q", "group": group, "lease_seconds": 60} for group in groups])
    connection.execute("select * from faultline.enqueue_many(%s)", (jobs,))


def _claimed(connection: psycopg.Connection, owner: str, most: int) -> list[str]:
    rows = connection.execute("select group_key from faultline.claim('q', %s, %s)", (owner, most)).fetchall()
    return sorted(group for (group,) in rows)


def test_empty_groups_do_not_keep_a_claim_from_others(dsn: str) -> None:
    """Two that were empty had the first turns for ever, and a claim looked at no more than two."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("select faultline.declare_queue('q', %s::jsonb)", (json.dumps({"queue": {"concurrency": 2}}),))
        _enqueue(connection, "a", "b", "c", "c")
        connection.execute("select faultline.cancel(id) from faultline.open_jobs where group_key in ('a', 'b')")

        assert _claimed(connection, "w/1", 2) == ["c", "c"]


def test_jobs_that_ran_before_there_were_limits_count_in_a_group_where_others_wait(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection, psycopg.connect(dsn) as holder:
        _enqueue(connection, "a")
        assert _claimed(connection, "w/1", 1) == ["a"]
        # Somebody holds its row while the limits are declared: `maintain_limits` counts it later.
        holder.execute("select from faultline.open_jobs for update")
        connection.execute(
            "select faultline.declare_queue('q', %s::jsonb)", (json.dumps({"each_group": {"concurrency": 1}}),)
        )
        _enqueue(connection, "a", "a", "a")
        assert _claimed(connection, "w/2", 1) == ["a"]
        holder.rollback()
        connection.execute("update faultline.limited_queues set all_events_applied_at = '-infinity'")
        connection.execute("select faultline.maintain_limits()")
        connection.execute("select faultline.maintain_limits()")

        assert connection.execute("select holding from faultline.groups").fetchall() == [(2,)]
        assert run_on(connection, invariants.invariant("permits_are_counted")) is None
