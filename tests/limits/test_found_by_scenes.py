"""What the explorer's scenes found once, kept as plain stories."""

from __future__ import annotations

import json
import time

import psycopg

from faultline.store.database import run_on
from faultline.store.reads import invariants


def test_a_claim_that_knows_no_flows_counts_each_job_once(dsn: str) -> None:
    """It looked at a group twice, and took the job that it had just granted for another one: a permit was lost."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "select faultline.declare_queue('q', %s::jsonb)", (json.dumps({"each_group": {"concurrency": 2}}),)
        )
        job = json.dumps([{"task": "t", "queue": "q", "group": "g"}])
        connection.execute("select * from faultline.enqueue_many(%s)", (job,))

        granted = connection.execute("select job_id from faultline.claim('q', 'w/1', 10, limits => true)").fetchall()

        assert len(granted) == 1
        assert connection.execute("select holding from faultline.shards").fetchall() == [(1,)]
        assert run_on(connection, invariants.invariant("permits_are_counted")) is None


def _enqueue(connection: psycopg.Connection, *groups: str) -> None:
    jobs = json.dumps([{"task": "t", "queue": "q", "group": group, "lease_seconds": 60} for group in groups])
    connection.execute("select * from faultline.enqueue_many(%s)", (jobs,))


def _claimed(connection: psycopg.Connection, owner: str, most: int, *, flows: bool) -> list[str]:
    rows = connection.execute(
        "select group_key from faultline.claim('q', %s, %s, flows => %s, limits => true)", (owner, most, flows)
    ).fetchall()
    return sorted(group for (group,) in rows)


def test_empty_groups_do_not_keep_a_claim_that_knows_no_flows_from_others(dsn: str) -> None:
    """To it, a group was never empty: two that were had the first turns for ever, and a claim looked at no more than two."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("select faultline.declare_queue('q', %s::jsonb)", (json.dumps({"queue": {"concurrency": 2}}),))
        _enqueue(connection, "a", "b", "c", "c")
        connection.execute("select faultline.cancel(id) from faultline.open_jobs where group_key in ('a', 'b')")

        assert _claimed(connection, "w/1", 2, flows=False) == ["c", "c"]


def test_a_claim_that_knows_no_flows_takes_what_lies_behind_jobs_of_flows(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("select faultline.declare_queue('q', %s::jsonb)", (json.dumps({"queue": {"concurrency": 2}}),))
        _enqueue(connection, "a", "b", "b")
        connection.execute(
            "update faultline.open_jobs set flow_id = id where id in"
            " (select min(id::text)::uuid from faultline.open_jobs group by group_key)"
        )

        assert _claimed(connection, "w/1", 10, flows=False) == ["b"]
        assert _claimed(connection, "w/2", 10, flows=False) == []
        time.sleep(0.12)  # what they passed over is looked at again a little later
        assert _claimed(connection, "w/3", 1, flows=True) == ["a"]
        assert run_on(connection, invariants.invariant("permits_are_counted")) is None


def test_jobs_that_ran_before_there_were_limits_count_in_a_group_where_others_wait(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection, psycopg.connect(dsn) as holder:
        _enqueue(connection, "a")
        assert _claimed(connection, "w/1", 1, flows=True) == ["a"]
        # Somebody holds its row while the limits are declared: `fold` counts it later.
        holder.execute("select from faultline.open_jobs for update")
        connection.execute(
            "select faultline.declare_queue('q', %s::jsonb)", (json.dumps({"each_group": {"concurrency": 1}}),)
        )
        _enqueue(connection, "a", "a", "a")
        assert _claimed(connection, "w/2", 1, flows=True) == ["a"]
        holder.rollback()
        connection.execute("update faultline.shards set heard_all_at = '-infinity'")
        connection.execute("select faultline.fold()")
        connection.execute("select faultline.fold()")

        assert connection.execute("select holding from faultline.groups").fetchall() == [(2,)]
        assert run_on(connection, invariants.invariant("permits_are_counted")) is None
