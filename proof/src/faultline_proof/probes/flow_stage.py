"""What the stories of flows have in common: a job that waits, its children, and those who look."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from faultline.core.model import Submission
from faultline.store import verbs
from faultline_proof.probes.probe import expect

if TYPE_CHECKING:
    from uuid import UUID

    from faultline.core.model import Lease, Unwritten
    from faultline_proof.sessions import Session

CHILDREN = {"number": "1", "kind": "children", "name": "child"}
ANSWER = {"number": "1", "kind": "signal", "name": "answer"}


def spawn(q: Session, lease: Lease, count: int, number: str = "1", policy: str = "raise", **fields: Any) -> int:
    """Give a job children in a queue of their own. Returns the id of the call."""
    children = [Submission("child", queue="children", **fields) for _ in range(count)]
    return q.run(verbs.spawn(lease, number, children, name="child", digest=None, policy=policy))


def suspend(q: Session, lease: Lease, *waits: dict[str, Any]) -> Unwritten:
    return q.run(verbs.suspend([lease], [json.dumps(waits or [CHILDREN])]))


def suspended_parent(q: Session, children: int = 1, **fields: Any) -> tuple[UUID, list[Lease]]:
    """A job that waits for its running children."""
    lease = q.new_lease(max_attempts=5)
    spawn(q, lease, children, **fields)
    suspend(q, lease)
    return lease.job_id, q.claim(queue="children")


class Resolver:
    """Resolves on its own session from where it stopped, as a worker does."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.cursor: str | None = None
        self.left_over = 0

    def woken(self, max_nudges: int = 100) -> int:
        rows = self._session.execute(
            "select woken, left_over, next_cursor::text from faultline.resolve(%s, %s::jsonb)", max_nudges, self.cursor
        )
        woken, self.left_over, self.cursor = rows[0]
        count: int = woken
        return count


def is_waiting(q: Session, job_id: UUID) -> bool:
    rows = q.execute("select state = 'queued' and suspended is true from faultline.jobs where id = %s", job_id)
    return bool(rows[0][0])


def expect_woken(q: Session, job_id: UUID) -> Lease:
    """The job goes on: it is claimed, as the job of a flow."""
    found = [lease for lease in q.claim() if lease.job_id == job_id]
    expect("leases of the job that was to go on", len(found), 1)
    expect("it is in a flow", found[0].in_flow, True)
    return found[0]


def sweep_all(q: Session) -> None:
    """Sweep until nothing can go on; a sweep that never ends is a fault."""
    for _ in range(100):
        if not q.run(verbs.sweep()):
            return
    raise AssertionError("the sweep does not end")
