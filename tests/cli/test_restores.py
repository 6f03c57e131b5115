"""The doctor, `migrate` and `recover` after a restore, or after a failover that lost commits."""

from __future__ import annotations

import dataclasses
import subprocess
from typing import TYPE_CHECKING
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from faultline import embedded
from faultline.store import verbs
from tests.cli.commands import faultline
from tests.cli.test_doctor import of_level, visit
from tests.conftest import SETTINGS
from tests.driver import Driver

if TYPE_CHECKING:
    from pathlib import Path


def test_a_write_under_a_lease_that_the_database_never_gave_is_evidence_of_lost_commits(queue: Driver, dsn: str) -> None:
    """A worker of the old primary completes a job of which the promoted standby knows nothing."""
    queue.enqueue()
    lease = queue.claim_one()
    assert "history" not in of_level(visit(dsn), "wrong")

    queue.complete(dataclasses.replace(lease, job_id=uuid4()))

    told = visit(dsn)
    assert "1 leases unknown to this database" in of_level(told, "wrong")["history"]
    (todo,) = (finding["todo"] for finding in told["findings"] if finding["check"] == "history")
    assert "faultline recover" in todo
    faultline("recover", "--dsn", dsn)
    assert "history" not in of_level(visit(dsn), "wrong")


def test_a_write_with_a_token_from_a_future_that_was_lost_is_evidence_too(queue: Driver, dsn: str) -> None:
    queue.enqueue()
    lease = queue.claim_one()

    queue.complete(dataclasses.replace(lease, fencing_token=lease.fencing_token + 1, owner="w/99"))

    assert "1 leases" in of_level(visit(dsn), "wrong")["history"]


def test_an_ordinary_refusal_is_no_evidence(queue: Driver, dsn: str) -> None:
    queue.enqueue()
    lease = queue.claim_one()
    queue.complete(lease)

    assert queue.release(lease).stale

    assert "history" not in of_level(visit(dsn), "wrong")


@pytest.mark.parametrize("again", [False, True])
def test_a_worker_of_a_job_that_was_pruned_is_no_evidence(queue: Driver, dsn: str, again: bool) -> None:  # noqa: FBT001
    job_id = queue.enqueue()
    lease = queue.claim_one()
    queue.run(verbs.cancel(job_id))
    queue.connection.execute("select faultline.prune('failed', '0')")
    if again:
        queue.enqueue(id=job_id)

    assert queue.complete(lease).stale

    assert "history" not in of_level(visit(dsn), "wrong")


def test_evidence_is_seen_while_the_floor_is_ahead_of_the_clock(queue: Driver, dsn: str) -> None:
    queue.enqueue()
    queue.run(verbs.recover(10**17))
    lease = queue.claim_one()

    queue.complete(dataclasses.replace(lease, job_id=uuid4()))

    assert "1 leases" in of_level(visit(dsn), "wrong")["history"]


@pytest.mark.long
def test_a_restore_into_a_cluster_without_the_roles_is_made_whole_by_migrate(
    queue: Driver, dsn: str, tmp_path: Path
) -> None:
    for key in "ab":
        queue.enqueue(idempotency_key=key)
    lease, done = queue.claim(2)
    queue.run(verbs.step(done, "first", 1))
    queue.complete(done)
    dump, programs = tmp_path / "dump", embedded.find_binaries()
    subprocess.run([programs.program("pg_dump"), "--format=custom", "--file", str(dump), dsn], check=True, env={})

    with (
        embedded.join(tmp_path / "restored", settings=SETTINGS) as fresh,
        psycopg.connect(fresh.dsn, autocommit=True) as own,
    ):
        own.execute("create database restored")
        restored = make_conninfo(fresh.dsn, dbname="restored")
        lossy = subprocess.run(
            [programs.program("pg_restore"), "--dbname", restored, str(dump)],
            check=False,
            capture_output=True,
            text=True,
            env={},
        )
        assert 'role "faultline_worker" does not exist' in lossy.stderr

        assert "missing" in of_level(visit(restored), "note")["roles"]
        (todo,) = (finding["todo"] for finding in visit(restored)["findings"] if finding["check"] == "roles")
        assert "create role faultline_worker nologin;" in todo
        assert "as the schema's owner: faultline migrate" in todo
        assert "migrated to protocol" in faultline("migrate", "--dsn", restored).stdout

        told = visit(restored)
        assert of_level(told, "wrong") == {}
        assert of_level(told, "warning").keys().isdisjoint({"grants", "indexes", "history", "roles"})
        assert of_level(told, "ok")["roles"] == "all four exist and have their grants"
        assert "up to date" in faultline("migrate", "--dsn", restored).stdout
        assert "running jobs requeued: 1" in faultline("recover", "--dsn", restored).stdout
        with psycopg.connect(restored, autocommit=True, options="-c role=faultline_worker") as worker:
            restored_queue = Driver(worker)
            again = restored_queue.claim_one()
            assert (again.job_id, again.fencing_token > lease.fencing_token) == (lease.job_id, True)
