"""Forks: which part of a history goes with one, and that it needs nothing else of the job that it is of."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from faultline.core.model import Submission
from faultline.store import verbs
from faultline.store.verbs import flow
from faultline_proof.probes.flow_stage import spawn, suspend
from faultline_proof.probes.probe import expect, probe, reasons, refused
from faultline_proof.sessions import numbered_id

if TYPE_CHECKING:
    from uuid import UUID

    from faultline.core.model import Lease
    from faultline_proof.sessions import Session, Sessions

_NUMBERS = "select number from faultline.calls where job_id = %s order by string_to_array(number, '.')::integer[]"
_JOBS = "select count(*) from faultline.jobs"


def _record(q: Session, lease: Lease, *numbers: str, **fields: Any) -> None:
    call = {"kind": "step", "name": "s", "digest": "d", "outcome": "done", "result": 1, **fields}
    q.run(verbs.record(lease, [{"number": number, **call} for number in numbers]))


def _numbers(q: Session, job_id: UUID) -> list[str]:
    return [row[0] for row in q.execute(_NUMBERS, job_id)]


def _forget(q: Session, lease: Lease) -> None:
    """Prune all flows that have ended: of this one, nothing is left."""
    while q.value("select faultline.prune('flows', interval '0')"):
        pass
    expect("the job", q.value("select count(*) from faultline.jobs where id = %s", lease.job_id), 0)


def _taken_children(q: Session, lease: Lease, *results: Any, number: str = "1", policy: str = "keep") -> None:
    """Children of which those without a result fail."""
    spawn(q, lease, len(results), number, policy)
    for child, result in zip(sorted(q.claim(queue="children"), key=lambda one: one.job_id), results, strict=True):
        if result is None:
            q.fail(child, then="fail")
        else:
            q.complete(child, result=result)
    expect("taken", q.run(verbs.collect_outcomes(lease, number)).status, "taken")


@probe("fork", "calls_to_copy")
def a_fork_has_the_calls_that_had_ended_before_the_one_given(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease(task="order", args={"n": 1}, priority=7, max_attempts=3, lease_seconds=9, keep_args=False)
    _record(q, lease, "1", "2.1", "2.2", "9", "10", "10.1", "11")
    _record(q, lease, "3", outcome=None)
    _record(q, lease, "9.1", kind="retry")
    for before, kept in (
        ("10", ["1", "2.1", "2.2", "9"]),
        ("2", ["1"]),
        ("2.2", ["1", "2.1"]),
        ("3", ["1", "2.1", "2.2"]),
        ("1", []),
        (None, ["1", "2.1", "2.2", "9", "10", "10.1", "11"]),
    ):
        fork = q.run(flow.fork(lease.job_id, before))
        expect(f"before {before}", _numbers(q, fork), kept)
        expect("what is awaited", q.value("select count(*) from faultline.calls where job_id = %s and awaited", fork), 0)
    fork = q.run(flow.fork(lease.job_id))
    columns = "task, queue, args::text, priority, max_attempts, lease_seconds, keep_args, state, attempt"
    both = [q.execute(f"select {columns} from faultline.open_jobs where id = %s", one)[0] for one in (lease.job_id, fork)]
    expect("the fork", both[1], (*both[0][:-2], "queued", 0))
    expect("the job", q.state(lease.job_id).value, "running")
    expect("its lease", q.renew(lease).stale, [])
    expect("invariants", q.broken_invariants(), [])


@probe("fork", "starts_queued", "open_jobs")
def the_tokens_of_a_fork_begin_above_those_in_its_history(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease(max_attempts=9)
    for _ in range(3):
        q.fail(lease)
        lease = q.claim_one()
    _record(q, lease, "1")
    q.step(lease)
    fork = q.run(flow.fork(lease.job_id))
    first = q.claim_one()
    expect("the job that is due", first.job_id, fork)
    expect("it is in a flow", first.in_flow, True)
    expect("its first token", first.fencing_token > lease.fencing_token, True)
    expect("its flow", q.value("select flow_id from faultline.jobs where id = %s", fork), fork)
    expect("its steps", q.value("select count(*) from faultline.steps where job_id = %s", fork), 1)
    expect("its attempt", first.attempt, 1)
    expect("invariants", q.broken_invariants(), [])


@probe("fork", "journal")
def the_journal_of_both_jobs_says_who_forked_it(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    _record(q, lease, "1")
    fork = q.run(flow.fork(lease.job_id, "1", by="ann", reason="a look"))
    for one, word, other in ((lease.job_id, "into", fork), (fork, "from", lease.job_id)):
        entry = q.journal(one)[-1]
        found = [entry.event, *(entry.detail.get(name) for name in (word, "before", "by", "reason"))]
        expect("the entry", found, ["forked", str(other), "1", "ann", "a look"])
    with refused(q, "FL005", "control characters"):
        q.run(flow.fork(lease.job_id, by="ann\n"))
    with refused(q, "FL005", "version 7"):
        q.execute("select faultline.fork(%s, id => '6f1c2b9e-0d7a-4c3e-9a51-1f0e8d2c7b44')", lease.job_id)


@probe("fork", "outcomes", "prune_flow", "calls_to_copy", "copy_history")
def what_a_fork_reads_stays_when_the_other_flow_is_pruned(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    _taken_children(q, lease, 10, None, 30)
    watched = q.enqueue(queue="elsewhere")
    q.run(verbs.watch(lease, "2", [watched], name="w", digest=None))
    q.complete(q.claim_one(queue="elsewhere"), result=5)
    q.run(verbs.collect_outcomes(lease, "2"))
    q.complete(lease)
    q.execute("select faultline.prune('ledger', interval '0')")
    fork = q.run(flow.fork(lease.job_id))
    before = [q.run(verbs.outcomes(call.call_id)) for call in q.run(verbs.history(fork))]
    _forget(q, lease)
    after = [q.run(verbs.outcomes(call.call_id)) for call in q.run(verbs.history(fork))]
    expect("what it reads", after, before)
    expect("the results", [one.result for one in after[0]], [10, None, 30])
    expect("the states", [one.state for one in after[0]], ["succeeded", "failed", "succeeded"])
    expect("the watched one", [one.result for one in after[1]], [5])
    expect("invariants", q.broken_invariants(), [])
    q.complete(q.claim_one())
    q.execute("select faultline.prune('flows', interval '0')")
    expect("what is left", [q.value(f"select count(*) from faultline.{t}") for t in ("calls", "edges", "flows")], [0, 0, 0])


@probe("fork", "came_after", "upstream", "calls_to_copy", "refuse_fork")
def a_fork_of_a_job_of_a_graph_has_what_that_came_after(sessions: Sessions) -> None:
    q = sessions.open()
    nodes = [
        {"task": "root", "args": {"names": ["a", "b"]}},
        {"task": "a", "name": "a"},
        {"task": "b", "name": "b", "after": ["a"]},
    ]
    root, _, last = (row[0] for row in q.execute("select job_id from faultline.enqueue_flow(%s)", json.dumps(nodes)))
    with refused(q, "FL002", "only waits for the jobs of a graph"):
        q.run(flow.fork(root))
    with refused(q, "FL002", "have not ended"):
        q.run(flow.fork(last))
    q.complete(q.claim_one(), result="A")
    q.run(verbs.resolve())
    early = q.run(flow.fork(last))
    due = {lease.job_id: lease for lease in q.claim()}
    node, fork_lease = due[last], due[early]
    expect("what the job came after", _upstream(q, node), [("a", "succeeded", "A")])
    q.complete(node)
    q.run(verbs.resolve())
    late = q.run(flow.fork(last))
    top = q.claim(queue="default")
    q.complete(*[one for one in top if one.job_id == root])
    while q.value("select faultline.prune('flows', interval '0')"):
        pass
    expect("the graph", q.value("select count(*) from faultline.jobs where id = %s", root), 0)
    expect("the early fork", _upstream(q, fork_lease), [("a", "succeeded", "A")])
    [late_lease] = [one for one in top if one.job_id == late]
    expect("the late fork", _upstream(q, late_lease), [("a", "succeeded", "A")])


def _upstream(q: Session, lease: Lease) -> list[tuple[Any, ...]]:
    query = "select name, state, result from faultline.upstream(%s, %s, %s)"
    return q.execute(query, lease.job_id, lease.fencing_token, lease.owner)


@probe("fork", "stopped_at", "calls_to_copy")
def children_that_failed_a_job_are_called_anew_by_its_fork(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    _record(q, lease, "1")
    _taken_children(q, lease, 1, None, number="2", policy="raise")
    running = q.run(flow.fork(lease.job_id))
    expect("of a running job", _numbers(q, running), ["1", "2"])
    q.fail(lease, then="fail")
    expect("of a failed job", _numbers(q, q.run(flow.fork(lease.job_id))), ["1"])


@probe("fork", "calls_to_copy")
def what_lost_a_race_has_lost_it_only_where_the_race_is_part_of_the_history(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    closed = {"number": "1", "kind": "sleep", "name": "sleep", "outcome": "closed"}
    won = {"number": "2", "kind": "step", "name": "s", "outcome": "done"}
    race = {"number": "3", "kind": "race", "name": "race", "outcome": "done", "result": {"winner": 1}}
    q.run(verbs.record(lease, [closed, won, race]))
    _record(q, lease, "4")
    expect("before its end", _numbers(q, q.run(flow.fork(lease.job_id, "3"))), ["2"])
    expect("after its end", _numbers(q, q.run(flow.fork(lease.job_id, "4"))), ["1", "2", "3"])


@probe("fork", "calls_to_copy")
def a_change_of_the_program_goes_with_the_calls_that_come_after_it(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    _record(q, lease, "1", "2", "3.1", "3.2")
    _record(q, lease, "0.1", kind="patch", name="p", result={"after": 1})
    _record(q, lease, "3.0.2", kind="patch", name="q", result={"after": 1})
    for before, kept in (
        ("1", []),
        ("2", ["0.1", "1"]),
        ("3.1", ["0.1", "1", "2"]),
        ("3.2", ["0.1", "1", "2", "3.0.2", "3.1"]),
        (None, ["0.1", "1", "2", "3.0.2", "3.1", "3.2"]),
    ):
        expect(f"before {before}", _numbers(q, q.run(flow.fork(lease.job_id, before))), kept)


@probe("fork", "refuse_fork")
def what_was_undone_is_not_taken_for_done(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    _record(q, lease, "1", "3")
    _record(q, lease, "2", kind="saga", name="saga", outcome="failed", error="no money")
    _record(q, lease, "2.1", name="undo s")
    _record(q, lease, "0.1", kind="saga", name="one that was left")
    for before in (None, "3", "2.1"):
        with refused(q, "FL002", "call 2 was undone", what=f"before {before}"):
            q.run(flow.fork(lease.job_id, before))
    expect("before it", _numbers(q, q.run(flow.fork(lease.job_id, "2"))), ["0.1", "1"])


@probe("fork", "copy_history")
def steps_with_names_are_kept_from_before_the_call(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    lease = q.new_lease()
    for name, number in (("a", "1"), ("b", "2")):
        q.step(lease, name)
        sessions.clock.advance(1)
        _record(q, lease, number)
        sessions.clock.advance(1)
    q.step(lease, "c")
    names = "select coalesce(string_agg(name, '' order by name), '') from faultline.steps where job_id = %s"
    for before, kept in (("1", "a"), ("2", "ab"), (None, "abc")):
        expect(f"before {before}", q.value(names, q.run(flow.fork(lease.job_id, before))), kept)


@probe("fork", "args_of_fork")
def a_fork_that_makes_no_sense_is_refused_and_begins_nothing(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease(keep_args=False)
    _record(q, lease, "1", "12")
    q.complete(lease)
    own = q.run(flow.fork(lease.job_id, args={}))
    jobs = q.value(_JOBS)
    for number in ("2", "1.1", "", "1.", "x", "1' --"):
        with refused(q, "FL004", "has no call", what=f"number {number!r}"):
            q.run(flow.fork(lease.job_id, number, {}))
    with refused(q, "FL004", "no job"):
        q.run(flow.fork(q.value("select gen_random_uuid()")))
    with refused(q, "FL004", "no job"):
        q.run(flow.fork(lease.job_id, args={}, only_queues=["other"]))
    with refused(q, "FL005", "were not kept"):
        q.run(flow.fork(lease.job_id))
    for text in ("[1]", "1", "null", "{", '{"a": "\\u0000"}'):
        with refused(q, "FL005", what=text):
            q.execute("select faultline.fork(%s, args => %s)", lease.job_id, text)
    with refused(q, "FL005", "another job with that id"):
        q.run(flow.fork(own, new_id=lease.job_id))
    expect("jobs", q.value(_JOBS), jobs)
    expect("one of its queue", q.run(flow.fork(lease.job_id, args={}, only_queues=["default"])) is not None, True)


@probe("fork")
def a_fork_that_is_sent_again_begins_one_job(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    _record(q, lease, "1")
    wanted = numbered_id(9)
    expect("the ids", [q.run(flow.fork(lease.job_id, new_id=wanted)) for _ in range(2)], [wanted, wanted])
    expect("entries", len([one for one in q.events(lease.job_id) if one == "forked"]), 1)


@probe("fork", "prune", "prune_flow", "prune_flows")
def a_flow_is_not_pruned_while_it_is_forked(sessions: Sessions) -> None:
    q, other = sessions.open(), sessions.open()
    lease = q.new_lease()
    _record(q, lease, "1")
    q.complete(lease)
    q.begin()
    q.run(flow.fork(lease.job_id))
    expect("pruned", sessions.at_once(other, lambda s: s.value("select faultline.prune('flows', interval '0')")), 0)
    q.commit()
    other.begin()
    other.execute("select faultline.prune('flows', interval '0')")
    with refused(q, "FL002", "is being pruned"):
        sessions.at_once(q, lambda s: s.run(flow.fork(lease.job_id)))
    other.rollback()


@probe("fork")
def a_fork_locks_nothing_of_the_job(sessions: Sessions) -> None:
    q, other = sessions.open(), sessions.open()
    lease = q.new_lease()
    _record(q, lease, "1")
    q.begin()
    q.run(flow.fork(lease.job_id))
    expect("a door that is left open", q.value("select current_setting('faultline.verb', true)"), "")
    expect("completed meanwhile", sessions.at_once(other, lambda s: s.complete(lease)).stale, [])
    q.commit()


@probe("fork", "wake_new")
def a_worker_is_woken_for_a_fork(sessions: Sessions) -> None:
    q, listener = sessions.open(), sessions.open()
    lease = q.new_lease()
    q.heartbeat(sleeping=["default"])
    listener.execute("listen faultline")
    q.run(flow.fork(lease.job_id))
    expect("woken", any("default" in notice for notice in listener.notices()), True)


@probe("fork", "cancel_children_batch", "reopen_flows")
def the_children_of_the_job_are_not_those_of_its_fork(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    q.run(verbs.spawn(lease, "1", [Submission("child", queue="children")], name="child", digest=None))
    suspend(q, lease)
    fork = q.run(flow.fork(lease.job_id))
    expect("calls of the fork", _numbers(q, fork), [])
    q.run(verbs.cancel(fork))
    q.run(verbs.sweep())
    expect("the child", q.value("select state from faultline.jobs where queue = 'children'"), "queued")


@probe("fork", "same_call", "copy_history")
def arguments_that_named_the_other_job_are_not_compared_in_its_fork(sessions: Sessions) -> None:
    """Of a digest that says so, and of no other: the branches around the call are those that they were."""
    q = sessions.open()
    lease = q.new_lease()
    own, other = "~" + "0a" * 16, "0b" * 16
    digests = [own, other, f"{own}/part:{other}", f"{other}/~{own}:{own}/x:{own}", None]
    calls = [
        {"number": str(number), "kind": "step", "name": "s", "digest": digest, "outcome": "done"}
        for number, digest in enumerate(digests, 1)
    ]
    q.run(flow.record(lease, calls))
    fork = q.run(flow.fork(lease.job_id))
    copied = [call.digest for call in q.run(flow.history(fork))]
    expect("copied", copied, ["~", other, f"~/part:{other}", f"{other}/~{own}:~/x:~", None])
    of_fork = next(one for one in q.claim() if one.job_id == fork)
    for number, digest in (("1", other), ("3", f"{other}/part:{other}")):
        call = calls[int(number) - 1] | {"digest": digest}
        expect("the call that was", reasons(q.run(flow.record(of_fork, [call]))), [])
    with refused(q, "FL005", "has other arguments now"):
        q.run(flow.record(of_fork, [calls[1] | {"digest": "0c" * 16}]))
