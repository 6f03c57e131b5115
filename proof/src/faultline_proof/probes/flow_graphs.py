"""Graphs: what is enqueued together, in which order it runs, and jobs that start over."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from faultline.store import verbs
from faultline.store.verbs import flow
from faultline_proof.probes.flow_stage import Resolver
from faultline_proof.probes.probe import expect, probe, reasons, refused, the_one

if TYPE_CHECKING:
    from faultline_proof.sessions import Session, Sessions

_ROOT = {"task": "root"}
_TRIES = 10


def _enqueue(q: Session, *nodes: dict[str, Any], root: dict[str, Any] | None = None) -> list[tuple[Any, ...]]:
    text = json.dumps([root or _ROOT, *nodes])
    return q.execute("select job_id, created from faultline.enqueue_flow(%s) order by position", text)


def _node(name: str, *after: str, **more: Any) -> dict[str, Any]:
    return {"task": name, "name": name, "after": list(after), **more}


@probe("enqueue_flow", "resolve", "can_resume", "apply_nudges", "insert_graph_jobs", "insert_graph_calls")
def the_jobs_of_a_graph_run_in_its_order_and_the_root_comes_last(sessions: Sessions) -> None:
    q = sessions.open()
    ids = [row[0] for row in _enqueue(q, _node("a"), _node("b", "a"), _node("c", "a"))]
    for tasks in (["a"], ["b", "c"], ["root"]):
        leases = q.claim()
        expect("due", sorted(lease.task for lease in leases), tasks)
        q.complete(*leases)
        q.run(flow.resolve())
    expect("states", {q.state(one) for one in ids}, {"succeeded"})


@probe("enqueue_flow", "cancel_unreached", "insert_graph_calls")
def what_comes_after_a_failed_job_is_cancelled_or_runs(sessions: Sessions) -> None:
    q = sessions.open()
    _, a, b, c = (row[0] for row in _enqueue(q, _node("a"), _node("b", "a"), _node("c", "b", if_failed="run")))
    q.fail(*q.claim(), then="fail")
    for _ in range(3):
        q.run(flow.resolve())
    expect("states", [q.state(one) for one in (a, b, c)], ["failed", "cancelled", "queued"])
    expect("due", [lease.task for lease in q.claim()], ["c"])


@probe("enqueue_flow", "read_graph", "graph_problem")
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
        ([_node("a", id="019a0000-0000-7000-8000-0123456789ab")], "of its own"),
        ([_node("a", no=1)], "no job has a field"),
        ([_node("a"), _node("b", "a", delay_seconds=5)], "a time of its own"),
        ([_node("a"), {**_node("b"), "after": "a"}], "must be an array of names"),
        ([{"task": "a", "name": ""}], "no name"),
    ]
    with q.unsaved():
        for nodes, why in bad:
            with refused(q, "FL005", why, what=why):
                _enqueue(q, *nodes)
        for text, why in (
            ('{"0": {}, "1": {}}', "a JSON array of objects"),
            ("[{}, 1]", "a JSON array of objects"),
            ("[1, {}]", "a JSON array of objects"),
            ("[", "the graph is refused"),
            ('[{}, {"a": "\\u0000"}]', "the graph is refused"),
        ):
            with refused(q, "FL005", why, what=text):
                q.execute("select faultline.enqueue_flow(%s)", text)
        with refused(q, "FL007", "10000 are the limit", what="a graph of 10,001 jobs"):
            _enqueue(q, *(_node(str(n)) for n in range(10_001)))
        expect("jobs", q.value("select count(*) from faultline.jobs"), 0)
    q.begin("repeatable read")
    with refused(q, "FL005", "READ COMMITTED", what="another isolation level"):
        _enqueue(q, _node("a"))


@probe("enqueue_flow", "insert_or_find_jobs")
def the_key_of_a_graph_gives_the_jobs_of_the_first(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        root = {"task": "root", "idempotency_key": "k"}
        first = _enqueue(q, _node("a"), _node("b", "a"), root=root)
        again = _enqueue(q, _node("a"), _node("b", "a"), root=root)
        expect("the same", [row[0] for row in again], [row[0] for row in first])
        expect("new", [row[1] for row in (*first, *again)], [True] * 3 + [False] * 3)
        text = json.dumps([root, _node("a"), _node("b", "a")])
        order = q.execute("select position from faultline.enqueue_flow(%s)", text)
        expect("in their order", order, [(1,), (2,), (3,)])
        with refused(q, "FL003", what="another graph"):
            _enqueue(q, _node("a"), root=root)


_ROWS = """
select j.task, j.flow_id = %s, j.call_id is not null, j.watched, j.suspended, j.next_run_at > now() + interval '1 day'
from faultline.open_jobs j
order by j.task
"""


@probe("enqueue_flow", "insert_graph_jobs", "insert_graph_calls")
def the_jobs_of_a_graph_are_one_flow_and_know_who_waits_for_them(sessions: Sessions) -> None:
    q = sessions.open()
    root = _enqueue(q, _node("a"), _node("b", "a"), _node("c", "b", if_failed="run"))[0][0]
    wanted = [
        ("a", True, True, True, None, False),
        ("b", True, True, True, True, True),
        ("c", True, True, None, True, True),
        ("root", True, False, None, True, True),
    ]
    expect("in its flow, of a call, awaited, waiting, later", q.execute(_ROWS, root), wanted)
    expect("flows", q.execute("select id from faultline.flows"), [(root,)])
    policies = q.execute(
        "select j.task, c.policy from faultline.calls c join faultline.jobs j on j.id = c.job_id order by 1"
    )
    expect("policies", policies, [("b", "cancel"), ("c", "run"), ("root", "raise")])


@probe("enqueue_flow", "wake_new", "insert_graph_jobs")
def workers_are_woken_for_the_jobs_of_a_graph_that_can_run(sessions: Sessions) -> None:
    q, listener = sessions.open(), sessions.open()
    for worker, queue in (("w", "default"), ("v", "late")):
        q.run(verbs.heartbeat(worker, host="h", pid=1, version="0", queues=[queue], sleeping=[queue], watched=True))
    listener.execute("listen faultline")
    notice: dict[str, Any] = {}
    for _ in range(_TRIES):
        _enqueue(q, _node("a"), _node("b", "a", queue="late"))
        notice = json.loads(the_one("hints", listener.notices()))
        if "workers" in notice:
            break  # otherwise the machine was so slow that later jobs may have been claimed: then all are told
        q.heartbeat("w", sleeping=["default"])
    expect("queue and workers", (notice["queue"], notice.get("workers")), ("default", ["w"]))
    graph = json.dumps([_ROOT, _node("a")])
    q.execute("select faultline.enqueue_flow(%s, true)", graph)
    notice = json.loads(the_one("hints of what may appear late", listener.notices()))
    expect("all are told", notice.get("workers"), None)


@probe("came_after", "upstream", "collect_outcomes", "enqueue_flow")
def a_job_of_a_graph_knows_what_became_of_those_before_it(sessions: Sessions) -> None:
    q = sessions.open()
    root = {"task": "root", "args": {"names": ["first", "second", "third", "other"]}}
    nodes = (_node("a"), _node("b"), _node("c", "b", "a", if_failed="run"), _node("d"))
    ids = [row[0] for row in _enqueue(q, *nodes, root=root)]
    leases = {lease.task: lease for lease in q.claim()}
    q.complete(leases["a"], result="A")
    q.step(leases["b"])
    q.fail(leases["b"], then="fail", error="boom")
    q.run(flow.resolve())
    lease = next(lease for lease in q.claim() if lease.task == "c")
    read = "select name, upstream_id, task, state, result, error from faultline.upstream(%s, %s, %s)"
    wanted = [("second", ids[2], "b", "failed", None, "boom"), ("first", ids[1], "a", "succeeded", "A", None)]
    for when in ("at first", "again"):
        expect(when, q.execute(read, lease.job_id, lease.fencing_token, lease.owner), wanted)
    call_id = q.value("select id from faultline.calls where job_id = %s and kind = 'after'", lease.job_id)
    now = q.execute("select name, upstream_id, task, state, result, error from faultline.came_after(%s, null)", call_id)
    expect("as they stand now", now, wanted)
    q.complete(lease, leases["d"])
    # A job that runs again is history to the one that came after it.
    sessions.hand.execute("update faultline.open_jobs set state = 'queued', finished_at = null where task = 'b'")
    q.complete(*(lease for lease in q.claim() if lease.task == "b"), result="B")
    expect("as it was taken", q.execute(_CAME, call_id, call_id)[0], ("failed", None))


_CAME = "select u.state, u.result from faultline.calls c, faultline.came_after(%s, c.result -> 'failed') u where c.id = %s"


@probe("continue_as_new", "refuse")
def a_job_that_starts_again_has_new_arguments_and_no_history(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    q.step(lease)
    q.run(flow.record(lease, [{"number": "1", "kind": "step", "name": "s", "outcome": "done", "result": 1}]))
    expect("written", reasons(q.run(flow.continue_as_new([lease], ['{"round": 2}']))), [])
    expect("sent again", reasons(q.run(flow.continue_as_new([lease], ['{"round": 2}']))), ["lease_lost"])
    expect("history", q.run(flow.history(lease.job_id)), [])
    expect("steps", q.value("select count(*) from faultline.steps"), 0)
    new = q.claim_one()
    expect("the same job", (new.job_id, new.args, new.attempt), (lease.job_id, {"round": 2}, 1))
    expect("a greater token", new.fencing_token > lease.fencing_token, True)
    expect("journal", q.events(lease.job_id)[0], "continued_as_new")


@probe("continue_as_new", "history", "forget_round")
def signals_of_the_round_before_answer_nothing_and_their_keys_stay_known(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    q.run(flow.receive(lease, "1", name="pay"))
    q.run(flow.signal(lease.job_id, "pay", 1, key="a"))
    expect("received", q.run(flow.receive(lease, "1", name="pay")).status, "received")
    q.run(flow.receive(lease, "2", name="pay"))
    q.run(flow.signal(lease.job_id, "pay", 2, key="b", for_call="2"))
    q.run(flow.signal(lease.job_id, "pay", 3, for_call="2"))
    expect("started over", reasons(q.run(flow.continue_as_new([lease], ["{}"]))), [])
    marks = [row[0] for row in q.execute("select received_by from faultline.signals order by id")]
    expect("marked with their round", marks, [f"{lease.fencing_token}/1", f"{lease.fencing_token}/"])
    new = q.claim_one()
    expect("known", [q.run(flow.signal(new.job_id, "pay", 1, key=key)) for key in "ab"], [False, False])
    for number in "12":
        expect("unanswered", q.run(flow.receive(new, number, name="pay")).status, "none")


@probe("continue_as_new", "upstream", "forget_round")
def a_job_that_starts_over_still_comes_after_the_same_jobs(sessions: Sessions) -> None:
    q = sessions.open()
    nodes = json.dumps([{"task": "root"}, {"task": "a", "name": "a"}, {"task": "b", "name": "b", "after": ["a"]}])
    q.execute("select from faultline.enqueue_flow(%s)", nodes)
    q.complete(q.claim_one(), result="of a")
    Resolver(q).woken()
    lease = q.claim_one()
    seen = "select name, result from faultline.upstream(%s, %s, %s)"
    for _ in range(2):
        expect("seen", q.execute(seen, lease.job_id, lease.fencing_token, lease.owner), [("a", "of a")])
        q.run(flow.continue_as_new([lease], ["{}"]))
        lease = q.claim_one()
