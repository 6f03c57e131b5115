"""The history of a program: what is recorded once, by whom, and what a later run reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from faultline.core.model import Unwritten
from faultline.store import verbs
from faultline_proof.probes.probe import expect, probe, reasons, refused

if TYPE_CHECKING:
    from faultline_proof.sessions import Sessions


def call(number: str = "1", kind: str = "step", name: str = "s", **fields: Any) -> dict[str, Any]:
    return {"number": number, "kind": kind, "name": name, "digest": "d", **fields}


@probe("record", "history", "calls")
def what_a_program_called_is_read_in_its_order_and_makes_the_job_a_flow(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    numbers = ["10", "2", "1.10", "1", "1.2"]
    calls = [call(number, outcome="done", result={"n": number}, tries=1) for number in numbers]
    expect("recorded", q.run(verbs.record(lease, calls)), Unwritten())
    found = q.run(verbs.history(lease.job_id))
    expect("the order", [known.number for known in found], ["1", "1.2", "1.10", "2", "10"])
    expect("results", [known.result["n"] for known in found], ["1", "1.2", "1.10", "2", "10"])
    expect("its flow", q.value("select flow_id from faultline.open_jobs"), lease.job_id)
    expect("the flows", q.execute("select id from faultline.flows"), [(lease.job_id,)])
    expect("broken", q.broken_invariants(), [])


@probe("record", "calls")
def a_call_that_has_ended_never_changes(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    q.run(verbs.record(lease, [call(), call("2", outcome="failed", error="boom")]))
    q.run(verbs.record(lease, [call(outcome="done", result=1)]))
    for outcome in ("done", "failed", "closed", None):
        q.run(verbs.record(lease, [call(outcome=outcome, result=2), call("2", outcome=outcome, result=3)]))
    found = [(known.outcome, known.result, known.error) for known in q.run(verbs.history(lease.job_id))]
    expect("the history", found, [("done", 1, None), ("failed", None, "boom")])
    with refused(q, "FL005", "the program has changed", "was step", "is step"):
        q.run(verbs.record(lease, [call(name="other", outcome="done")]))
    with refused(q, "FL005", "the program has changed", "other arguments"):
        q.run(verbs.record(lease, [{**call(outcome="done"), "digest": "e"}]))


@probe("record", "refuse")
def a_stale_lease_records_no_call(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    q.release(lease)
    expect("refused", reasons(q.run(verbs.record(lease, [call()]))), ["lease_lost"])
    expect("on record", q.refusals(lease.job_id), [("record", "lease_lost")])
    expect("calls", q.run(verbs.history(lease.job_id)), [])
