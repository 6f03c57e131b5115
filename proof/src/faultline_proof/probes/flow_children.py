"""Children of a running job: enqueued once, waited for together, and taken as they ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from faultline.core.model import Submission
from faultline.store import verbs
from faultline_proof.probes.probe import expect, probe

if TYPE_CHECKING:
    from faultline.core.model import Lease
    from faultline_proof.sessions import Session, Sessions


def jobs(count: int, **fields: Any) -> list[Submission]:
    return [Submission("child", f'{{"n": {n}}}', queue="children", **fields) for n in range(count)]


def spawn(q: Session, lease: Lease, submissions: list[Submission], number: str = "1", **fields: Any) -> int:
    return q.run(verbs.spawn(lease, number, submissions, name="child", digest="d", **fields))


@probe("spawn", "take", "outcomes")
def children_are_enqueued_once_and_taken_as_they_ended(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    call_id = spawn(q, lease, jobs(3))
    expect("sent again", spawn(q, lease, jobs(3)), call_id)
    expect("before they end", q.run(verbs.take(lease, "1")).status, "open")
    first, second, third = q.claim(queue="children")
    expect("children", [child.args["n"] for child in (first, second, third)], [0, 1, 2])
    q.complete(first, third, result="good")
    q.fail(second, then="fail", error="bad")
    taken = q.run(verbs.take(lease, "1"))
    failed = {"1": {"state": "failed", "error": "bad"}}
    expect("taken", (taken.status, taken.result["failed"]), ("taken", failed))
    found = [(row.index, row.state, row.result, row.error) for row in q.run(verbs.outcomes(call_id))]
    wanted_rows = [(0, "succeeded", "good", None), (1, "failed", None, "bad"), (2, "succeeded", "good", None)]
    expect("outcomes", found, wanted_rows)
    known = q.run(verbs.history(lease.job_id))
    found_calls = [(row.outcome, row.result, row.total, row.spawned) for row in known]
    expect("the history", found_calls, [("failed", taken.result, 3, 3)])
