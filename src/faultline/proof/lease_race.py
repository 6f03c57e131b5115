"""The lease race: A stalls and loses its lease, B takes the job over, A comes back and is refused, B finishes.

Two sessions on a real database, stepped from one place, so that the order is not a matter of luck. Only the lease itself
runs out by the database's own clock.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from faultline.core import events
from faultline.core.model import JobState, Submission
from faultline.proof.drill import Verdict, tracing
from faultline.store import invariants, jsontext, queue, scratch, views
from faultline.store.database import Database, run_on

if TYPE_CHECKING:
    from uuid import UUID

    import psycopg

    from faultline.core.model import Lease

LEASE_SECONDS = 1.0
_PATIENCE_SECONDS = 20.0


def run(dsn: str) -> Verdict:
    """Run the race in a scratch database beside the named one."""
    verdict = Verdict("lease-race")
    with scratch.database(dsn) as scratch_dsn, tracing(verdict):
        database = Database(scratch_dsn)
        try:
            _race(database, verdict)
        finally:
            database.close()
    return verdict


def _race(database: Database, verdict: Verdict) -> None:
    with database.connect() as a_session, database.connect() as b_session:
        job_id = database.run(queue.enqueue_many([Submission("transfer", lease_seconds=LEASE_SECONDS)]))[0].job_id
        a, b = Contender("A", a_session), Contender("B", b_session)

        a.claim_and_start()
        _wait_until_reaped(database, job_id)
        b.claim_and_start()
        # While B is at work: once B is done, even a protocol without a fence would find nothing left to overwrite.
        a.complete({"paid by": "A"})
        a.leave()
        b.complete({"paid by": "B"})
        b.leave()
    _judge(database, job_id, verdict)


class Contender:
    """A worker reduced to its claims and writes: it has no heartbeat, so its lease runs out when it dawdles."""

    def __init__(self, name: str, session: psycopg.Connection) -> None:
        self._name = name
        self._session = session
        self._lease: Lease | None = None
        self._exit = "success"

    def claim_and_start(self) -> None:
        (self._lease,) = run_on(self._session, queue.claim("default", owner=f"{self._name}/1", max_jobs=1))
        for event in ("lease_acquired", "execution_started"):
            events.emit(event, job_id=self._lease.job_id, token=self._lease.fencing_token, worker=self._name)

    def complete(self, result: dict[str, str]) -> None:
        assert self._lease is not None  # noqa: S101 - our own order of steps
        for refusal in run_on(self._session, queue.complete([self._lease], [jsontext.encode(result, "result")])).stale:
            self._exit = "stale"
            events.emit(
                "stale_write_blocked",
                job_id=refusal.lease.job_id,
                stale_token=refusal.lease.fencing_token,
                current_token=refusal.current_token,
                reason=refusal.reason.value,
                worker=self._name,
            )

    def leave(self) -> None:
        events.emit("worker_exit", reason=self._exit, worker=self._name)


def _wait_until_reaped(database: Database, job_id: UUID) -> None:
    give_up = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < give_up:
        if job_id in [reaped.job_id for reaped in database.run(queue.reap())]:
            return
        time.sleep(0.05)
    raise AssertionError(f"a lease of {LEASE_SECONDS} s did not run out within {_PATIENCE_SECONDS} s")


def _judge(database: Database, job_id: UUID, verdict: Verdict) -> None:
    job = database.run(views.job(job_id))
    refused = [entry for entry in database.run(views.journal(job_id)) if entry.event == "stale_write_blocked"]
    verdict.expect("rows in the ledger", database.run(views.ledger_rows(job_id)), 1)
    verdict.expect("state of the job", job and job.state, JobState.SUCCEEDED)
    verdict.expect("token in the ledger", job and job.fencing_token, 2)
    verdict.expect("result in the ledger", job and job.result, {"paid by": "B"})
    verdict.expect("writes refused and on record", [entry.detail["reason"] for entry in refused], ["token_mismatch"])
    verdict.expect("invariants broken", [v.invariant for v in invariants.violations(database.run)], [])
