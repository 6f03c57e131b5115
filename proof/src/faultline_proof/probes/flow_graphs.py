"""Graphs: what is enqueued together, in which order it runs, and jobs that start over."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from faultline.store.verbs import flow
from faultline_proof.probes.probe import expect, probe, reasons, refused

if TYPE_CHECKING:
    from faultline_proof.sessions import Session, Sessions

_ROOT = {"task": "root"}


def _enqueue(q: Session, *nodes: dict[str, Any], root: dict[str, Any] | None = None) -> list[tuple[Any, ...]]:
    text = json.dumps([root or _ROOT, *nodes])
    return q.execute("select job_id, created from faultline.enqueue_flow(%s) order by position", text)


def _node(name: str, *after: str, **more: Any) -> dict[str, Any]:
    return {"task": name, "name": name, "after": list(after), **more}


@probe("enqueue_flow", "resolve", "look")
def the_jobs_of_a_graph_run_in_its_order_and_the_root_comes_last(sessions: Sessions) -> None:
    q = sessions.open()
    ids = [row[0] for row in _enqueue(q, _node("a"), _node("b", "a"), _node("c", "a"))]
    for tasks in (["a"], ["b", "c"], ["root"]):
        leases = q.claim()
        expect("due", sorted(lease.task for lease in leases), tasks)
        q.complete(*leases)
        q.run(flow.resolve())
    expect("states", {q.state(one) for one in ids}, {"succeeded"})


@probe("enqueue_flow", "cancel_unreached")
def what_comes_after_a_failed_job_is_cancelled_or_runs(sessions: Sessions) -> None:
    q = sessions.open()
    _, a, b, c = (row[0] for row in _enqueue(q, _node("a"), _node("b", "a"), _node("c", "b", if_failed="run")))
    q.fail(*q.claim(), then="fail")
    for _ in range(3):
        q.run(flow.resolve())
    expect("states", [q.state(one) for one in (a, b, c)], ["failed", "cancelled", "queued"])
    expect("due", [lease.task for lease in q.claim()], ["c"])


@probe("enqueue_flow")
def a_graph_that_cannot_run_is_refused_as_a_whole(sessions: Sessions) -> None:
    q = sessions.open()
    bad: list[tuple[list[dict[str, Any]], str]] = [
        ([], "at least one job"),
        ([_node("a", "b"), _node("b", "a")], "a cycle"),
        ([_node("a", "a")], "a cycle"),
        ([_node("a", "x")], "not in the graph"),
        ([_node("a"), _node("a")], "two jobs"),
        ([_node("a"), _node("b", "a", "a")], "twice"),
        ([{"task": "a"}], "no name"),
        ([_node("a", if_failed="x")], "if_failed"),
        ([_node("a", idempotency_key="k")], "of its own"),
        ([_node("a", no=1)], "no job has a field"),
    ]
    with q.unsaved():
        for nodes, why in bad:
            with refused(q, "FL005", why, what=why):
                _enqueue(q, *nodes)
        expect("jobs", q.value("select count(*) from faultline.jobs"), 0)


@probe("enqueue_flow", "place_known")
def the_key_of_a_graph_gives_the_jobs_of_the_first(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        root = {"task": "root", "idempotency_key": "k"}
        first = _enqueue(q, _node("a"), _node("b", "a"), root=root)
        again = _enqueue(q, _node("a"), _node("b", "a"), root=root)
        expect("the same", [row[0] for row in again], [row[0] for row in first])
        expect("new", [row[1] for row in (*first, *again)], [True] * 3 + [False] * 3)
        with refused(q, "FL003", what="another graph"):
            _enqueue(q, _node("a"), root=root)


@probe("start_again", "refuse")
def a_job_that_starts_again_has_new_arguments_and_no_history(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    q.step(lease)
    q.run(flow.record(lease, [{"number": "1", "kind": "step", "name": "s", "outcome": "done", "result": 1}]))
    expect("written", reasons(q.run(flow.start_again([lease], ['{"round": 2}']))), [])
    expect("sent again", reasons(q.run(flow.start_again([lease], ['{"round": 2}']))), ["lease_lost"])
    expect("history", q.run(flow.history(lease.job_id)), [])
    expect("steps", q.value("select count(*) from faultline.steps"), 0)
    new = q.claim_one()
    expect("the same job", (new.job_id, new.args, new.attempt), (lease.job_id, {"round": 2}, 1))
    expect("a greater token", new.fencing_token > lease.fencing_token, True)
    expect("journal", q.events(lease.job_id)[0], "started_over")


@probe("start_again", "history")
def signals_of_the_round_before_answer_nothing_and_their_keys_stay_known(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    q.run(flow.receive(lease, "1", name="pay"))
    q.run(flow.signal(lease.job_id, "pay", 1, key="a"))
    expect("received", q.run(flow.receive(lease, "1", name="pay")).status, "received")
    q.run(flow.receive(lease, "2", name="pay"))
    q.run(flow.signal(lease.job_id, "pay", 2, key="b", for_call="2"))
    q.run(flow.signal(lease.job_id, "pay", 3, for_call="2"))
    expect("started over", reasons(q.run(flow.start_again([lease], ["{}"]))), [])
    marks = [row[0] for row in q.execute("select received_by from faultline.signals order by id")]
    expect("marked with their round", marks, [f"{lease.fencing_token}/1", f"{lease.fencing_token}/"])
    new = q.claim_one()
    expect("known", [q.run(flow.signal(new.job_id, "pay", 1, key=key)) for key in "ab"], [False, False])
    for number in "12":
        expect("unanswered", q.run(flow.receive(new, number, name="pay")).status, "none")
