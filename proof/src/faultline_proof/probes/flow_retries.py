"""Retries in flows: which calls are opened, who starts over and who waits again, and two retries at once."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from faultline.core.model import Failure, Submission
from faultline.store import verbs
from faultline_proof.probes.flow_stage import ANSWER, CHILDREN, Resolver, is_waiting, spawn, suspend
from faultline_proof.probes.probe import expect, probe, refused

if TYPE_CHECKING:
    from uuid import UUID

    from faultline.core.model import Lease
    from faultline_proof.sessions import Session, Sessions


def _graph(q: Session, *nodes: tuple[str, list[str]], **fields: Any) -> dict[str, UUID]:
    text = json.dumps([{"task": "root"}, *({"task": name, "name": name, "after": after, **fields} for name, after in nodes)])
    rows = q.execute("select job_id from faultline.enqueue_flow(%s) order by position", text)
    return dict(zip(("root", *(name for name, _ in nodes)), (row[0] for row in rows), strict=True))


def _outcomes(q: Session, lease: Lease) -> dict[str, str | None]:
    return {call.number: call.outcome for call in q.run(verbs.history(lease.job_id))}


@probe("why_not_retried", "retry")
def a_child_that_was_left_behind_is_not_retried(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    spawn(q, lease, 1)
    child = q.claim_one(queue="children")
    q.complete(lease)
    q.fail(child, then="fail")
    with refused(q, "FL002", "which has ended", what="a child whose parent succeeded"):
        q.run(verbs.retry(child.job_id))


@probe("reopen_flows", "retry")
def a_job_that_was_there_before_its_caller_is_not_retried_with_it(sessions: Sessions) -> None:
    q = sessions.open()
    known = Submission("t", queue="others", idempotency_key="k")
    q.run(verbs.enqueue_many([known]))
    other = q.claim_one(queue="others")
    q.fail(other, then="fail")
    lease = q.new_lease()
    q.run(verbs.spawn(lease, "1", [known], name="t", digest=None))
    q.fail(lease, then="fail")
    q.run(verbs.retry(lease.job_id))
    expect("states", [q.state(one.job_id).value for one in (lease, other)], ["queued", "failed"])


@probe("reopen_flows", "requeue_ended_jobs", "retry")
def two_retries_at_once_start_what_comes_after_both_over_once(sessions: Sessions) -> None:
    q, other = sessions.open(), sessions.open()
    ids = _graph(q, ("a", []), ("b", []), ("c", ["a", "b"]))
    q.fail(*q.claim(), then="fail")
    resolver = Resolver(q)
    while resolver.woken() or resolver.left_over:
        pass
    expect("before", q.state(ids["c"]).value, "cancelled")
    other.begin()
    other.run(verbs.retry(ids["a"]))
    second = q.start(lambda session: session.run(verbs.retry(ids["b"])))
    sessions.wait_until_blocked(q, second)
    other.commit()
    expect("the second", second.result(), "queued")
    expect("retried", q.events(ids["c"]).count("retried"), 1)
    expect("it waits again", is_waiting(q, ids["c"]), True)


@probe("reopen_flows", "requeue_ended_jobs", "retry")
def two_retries_at_once_start_a_child_over_once(sessions: Sessions) -> None:
    q, other = sessions.open(), sessions.open()
    lease = q.new_lease()
    spawn(q, lease, 1)
    child = q.claim_one(queue="children")
    q.fail(child, then="fail")
    other.begin()
    other.run(verbs.retry(child.job_id))
    sessions.at_once(q, lambda session: session.fail(lease, then="fail"))
    second = q.start(lambda session: session.run(verbs.retry(lease.job_id)))
    sessions.wait_until_blocked(q, second)
    other.commit()
    expect("the second", second.result(), "queued")
    expect("retried", q.events(child.job_id).count("retried"), 1)


@probe("reopen_flows", "retry")
def a_child_that_is_running_keeps_its_history_when_its_parent_is_retried(sessions: Sessions) -> None:
    """Nobody has cancelled it yet. It has called a job that failed, and goes on."""
    q = sessions.open()
    lease = q.new_lease()
    spawn(q, lease, 1)
    child = q.claim_one(queue="children")
    spawn(q, child, 1)
    q.fail(q.claim_one(queue="children"), then="fail")
    expect("taken", q.run(verbs.collect_outcomes(child, "1")).status, "taken")
    q.fail(lease, then="fail")
    q.run(verbs.retry(lease.job_id))
    expect("the child", (q.state(child.job_id).value, _outcomes(q, child)), ("running", {"1": "failed"}))


@probe("closed_with", "open_again", "reopen_flows", "retry")
def what_was_given_up_with_a_failure_is_awaited_again_with_it(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    spawn(q, lease, 1, "1")
    q.fail(q.claim_one(queue="children"), then="fail")
    spawn(q, lease, 1, "2")
    expect("taken", q.run(verbs.collect_outcomes(lease, "1")).status, "taken")
    given_up = {"number": "2", "kind": "children", "name": "child", "outcome": "closed"}
    alert = {"number": "3", "kind": "step", "name": "alert", "outcome": "done"}
    q.run(verbs.record(lease, [given_up, alert]))
    q.run(verbs.fail([lease], [Failure("ChildFailed", then="fail", calls=("1",))]))
    q.run(verbs.retry(lease.job_id))
    expect("history", _outcomes(q, lease), {"1": None, "2": None, "3": "done"})


def _went_on(q: Session, **fields: Any) -> tuple[dict[str, UUID], Lease]:
    """A graph of two: the first has failed, and the second runs with its failure."""
    ids = _graph(q, ("a", []), ("b", ["a"]), if_failed="run", **fields)
    q.fail(q.claim_one(), then="fail")
    expect("woken", Resolver(q).woken(), 1)
    return ids, q.claim_one()


@probe("refuse_behind", "stand_in", "reopen_flows", "retry")
def a_job_that_succeeded_with_a_failure_is_made_anew_when_that_is_retried(sessions: Sessions) -> None:
    q = sessions.open()
    ids, second = _went_on(q)
    with refused(q, "FL002", "runs now with its failure"):
        q.run(verbs.retry(ids["a"]))
    q.complete(second)
    q.run(verbs.retry(ids["a"]))
    (anew,) = q.execute("select id from faultline.open_jobs where task = 'b' and state = 'queued'")
    expect("it waits", is_waiting(q, anew[0]), True)
    first = q.claim_one()
    expect("due", first.job_id, ids["a"])
    q.complete(first)
    Resolver(q).woken()
    expect("then", q.claim_one().job_id, anew[0])
    expect("invariants", q.broken_invariants(), [])


@probe("refuse_behind", "retry")
def what_comes_before_a_job_without_arguments_is_not_retried(sessions: Sessions) -> None:
    q = sessions.open()
    ids, second = _went_on(q, keep_args=False)
    q.complete(second)
    with refused(q, "FL002", "its arguments were not kept"):
        q.run(verbs.retry(ids["a"]))


@probe("stand_in", "reopen_flows", "retry")
def one_job_stands_in_however_many_that_it_comes_after_are_retried(sessions: Sessions) -> None:
    q = sessions.open()
    ids = _graph(q, ("a", []), ("b", []), ("c", ["a", "b"]), ("d", []), if_failed="run")
    q.fail(*[one for one in q.claim() if one.job_id in (ids["a"], ids["b"])], then="fail")
    expect("woken", Resolver(q).woken(), 1)
    q.complete(q.claim_one())
    for name in ("a", "b"):
        q.run(verbs.retry(ids[name]))
    expect("jobs", q.value("select count(*) from faultline.jobs where task = 'c'"), 2)
    expect("invariants", q.broken_invariants(), [])


@probe("reopen_flows", "forget_upstream", "retry")
def children_of_a_job_that_looks_again_stay_as_they_ended(sessions: Sessions) -> None:
    q = sessions.open()
    ids, second = _went_on(q)
    q.execute("select faultline.upstream(%s, %s, %s)", second.job_id, second.fencing_token, second.owner)
    spawn(q, second, 1)
    child = q.claim_one(queue="children")
    spawn(q, child, 1)
    below = q.claim_one(queue="children")
    q.fail(below, then="fail")
    q.run(verbs.collect_outcomes(child, "1"))
    q.fail(child, then="fail")
    q.run(verbs.collect_outcomes(second, "1"))
    q.fail(second, then="fail")
    q.run(verbs.retry(ids["a"]))
    expect("states", [q.state(one.job_id).value for one in (second, child, below)], ["queued", "failed", "failed"])
    expect("invariants", q.broken_invariants(), [])


@probe("forget_upstream", "reopen_flows", "retry")
def a_job_that_failed_with_a_failure_looks_again_when_that_is_retried(sessions: Sessions) -> None:
    q = sessions.open()
    ids, second = _went_on(q)
    lease = (second.job_id, second.fencing_token, second.owner)
    expect("it looks", q.execute("select state from faultline.upstream(%s, %s, %s)", *lease), [("failed",)])
    q.fail(second, then="fail")
    q.run(verbs.retry(ids["a"]))
    expect("it waits again", is_waiting(q, second.job_id), True)
    expect("history", _outcomes(q, second), {"0": None})


@probe("refuse_reopening", "reopen_flows", "undone_saga", "retry")
def a_job_is_not_retried_whose_child_has_undone_its_saga(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    spawn(q, lease, 1)
    child = q.claim_one(queue="children")
    q.run(verbs.record(child, [{"number": "1", "kind": "saga", "name": "saga", "outcome": "failed", "error": "no rooms"}]))
    q.run(verbs.fail([child], [Failure("no rooms", then="fail", calls=("1",))]))
    q.fail(lease, then="fail")
    with refused(q, "FL002", "the saga of its child"):
        q.run(verbs.retry(lease.job_id))


@probe("requeue_ended_jobs", "retry", "reopen_flows")
def a_job_of_a_graph_that_is_retried_goes_on_at_once_when_all_before_it_have_ended(sessions: Sessions) -> None:
    q = sessions.open()
    resolver = Resolver(q)
    ids = _graph(q, ("a", []), ("b", ["a"]))
    q.complete(*q.claim())
    expect("woken", resolver.woken(), 1)
    lease = q.claim_one()
    suspend(q, lease, ANSWER)
    q.run(verbs.cancel(ids["b"]))
    resolver.woken()
    q.run(verbs.retry(ids["b"]))
    awaited = q.execute("select number, awaited from faultline.calls where job_id = %s order by id", ids["b"])
    expect("what it waits for", awaited, [("0", True), ("1", False)])
    expect("it waits", is_waiting(q, ids["b"]), True)
    expect("woken again", resolver.woken(), 1)
    expect("due", ids["b"] in {one.job_id for one in q.claim()}, True)


@probe("stopped_at", "reopen_flows")
def a_retry_opens_no_call_that_was_done(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    spawn(q, lease, 1)
    q.complete(q.claim_one(queue="children"))
    expect("taken", q.run(verbs.collect_outcomes(lease, "1")).status, "taken")
    q.fail(lease, then="fail")
    q.run(verbs.retry(lease.job_id))
    expect("history", _outcomes(q, lease), {"1": "done"})


@probe("stopped_at", "reopen_flows")
def a_retry_asks_no_question_again_that_was_answered(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    q.run(verbs.signal(lease.job_id, "answer", 1))
    expect("received", q.run(verbs.receive(lease, "1", name="answer")).status, "received")
    q.fail(lease, then="fail")
    q.run(verbs.retry(lease.job_id))
    expect("history", _outcomes(q, lease), {"1": "done"})


@probe("stopped_at", "reopen_flows")
def a_retry_opens_the_call_of_a_branch_however_far_another_has_come(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    lease = q.new_lease()
    spawn(q, lease, 1, "1.1")
    q.fail(q.claim_one(queue="children"), then="fail")
    expect("taken", q.run(verbs.collect_outcomes(lease, "1.1")).status, "taken")
    sessions.clock.advance(1)
    q.run(verbs.record(lease, [{"number": "2.1", "kind": "step", "name": "s", "outcome": "done"}]))
    q.fail(lease, then="fail")
    q.run(verbs.retry(lease.job_id))
    expect("history", _outcomes(q, lease), {"1.1": None, "2.1": "done"})


@probe("stopped_at", "open_again", "collect_outcomes", "record", "retry")
def what_came_after_a_failure_is_told_by_the_order_of_the_records_not_by_the_clock(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    for seconds in (0, -3600):
        lease = q.new_lease()
        spawn(q, lease, 1, "1")
        q.fail(q.claim_one(queue="children"), then="fail")
        expect("taken", q.run(verbs.collect_outcomes(lease, "1")).status, "taken")
        sessions.hand.execute("update story.time set at = at + make_interval(secs => %s)", seconds)
        q.run(verbs.record(lease, [{"number": "2", "kind": "step", "name": "s", "outcome": "done"}]))
        q.fail(lease, then="fail")
        q.run(verbs.retry(lease.job_id))
        expect("history", _outcomes(q, lease), {"1": "failed", "2": "done"})
        q.run(verbs.cancel(lease.job_id))


@probe("fail", "stopped_at", "open_again", "record", "forget_calls", "forget_doubtful", "retry")
def a_failure_that_ended_the_job_is_opened_and_what_came_after_it_is_doubtful(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    spawn(q, lease, 1, "1")
    q.fail(q.claim_one(queue="children"), then="fail")
    q.run(verbs.collect_outcomes(lease, "1"))
    q.run(verbs.record(lease, [{"number": "2", "kind": "step", "name": "alert", "outcome": "done"}]))
    q.run(verbs.fail([lease], [Failure("ChildFailed", then="fail", calls=("1",))]))
    q.run(verbs.retry(lease.job_id))
    expect("history", _outcomes(q, lease), {"1": None, "2": "done"})
    again = next(one for one in q.claim() if one.job_id == lease.job_id)
    other = {"number": "2", "kind": "step", "name": "ship", "outcome": "done"}
    with refused(q, "FL005", "the program has changed"):
        q.run(verbs.record(again, [other]))
    q.run(verbs.record(again, [{"number": "2", "kind": "step", "name": "", "outcome": "forgotten"}, other]))
    names = {call.number: (call.name, call.doubtful) for call in q.run(verbs.history(lease.job_id))}
    expect("what it made", names["2"], ("ship", None))
    expect("what is not doubtful stays", q.run(verbs.record(again, [{"number": "1", "outcome": "forgotten"}])).stale, [])
    expect("history then", _outcomes(q, lease), {"1": None, "2": "done"})


@probe("resolve", "wake_for")
def workers_are_told_of_a_job_that_goes_on(sessions: Sessions) -> None:
    q, listener = sessions.open(), sessions.open()
    lease = q.new_lease()
    spawn(q, lease, 1)
    suspend(q, lease, CHILDREN)
    q.complete(q.claim_one(queue="children"))
    q.heartbeat(sleeping=["default"])
    listener.execute("listen faultline")
    expect("woken", Resolver(q).woken(), 1)
    expect("told", [json.loads(one).get("queue") for one in listener.notices()], ["default"])


@probe("resolve")
def a_cursor_does_not_grow_without_end(sessions: Sessions) -> None:
    """Behind a row that is held for long, nudges pile up. Rather than send all of them to and fro, begin again."""
    q = sessions.open()
    sessions.hand.execute(
        "insert into faultline.nudges (job_id, kind, not_before) select gen_random_uuid(), 0, now() + interval '1 hour'"
        " from generate_series(1, 10500)"
    )
    resolver = Resolver(q)
    for _ in range(10):
        resolver.woken(max_nudges=1000)
    expect("its size", len(json.loads(resolver.cursor or '{"kept": []}')["kept"]), 10_000)
    resolver.woken(max_nudges=1000)
    expect("beyond that", resolver.cursor, None)
