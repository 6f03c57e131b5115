"""What the explorer's scenes found once, kept as plain stories."""

from __future__ import annotations

import json

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
