"""Jobs that start over with other arguments: who may, what they leave behind, and what goes with them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from faultline.store import verbs
from faultline.store.verbs import flow, streams
from faultline_proof.probes.flow_stage import ANSWER, Resolver, expect_woken, spawn, suspend
from faultline_proof.probes.probe import expect, probe, reasons, refused

if TYPE_CHECKING:
    from faultline.core.model import Lease
    from faultline_proof.sessions import Session, Sessions

_EDGES = (
    "select c.number, e.index from faultline.calls c join faultline.edges e on e.call_id = c.id"
    " where c.job_id = %s order by c.id, e.index"
)


def _again(q: Session, *leases: Lease, args: str = "{}") -> list[str]:
    return reasons(q.run(flow.continue_as_new(leases, [args] * len(leases))))


@probe("continue_as_new", "refuse", "half")
def nobody_starts_a_job_over_without_its_lease(sessions: Sessions) -> None:
    q, other = sessions.open(), sessions.open()
    old = q.new_lease()
    q.release(old)
    new = q.claim_one(worker="another")
    expect("with an old token", _again(q, replace(new, fencing_token=old.fencing_token)), ["token_mismatch"])
    expect("with another owner", _again(q, replace(new, owner=old.owner)), ["token_mismatch"])
    other.begin()
    other.complete(new)
    expect("while it is locked", sessions.at_once(q, lambda s: s.run(flow.continue_as_new([new], ["{}"]))).busy, [new])
    other.rollback()
    expect("with the lease", _again(q, new), [])
    with refused(q, "FL005", "arrays of the same length", what="half a lease"):
        q.execute("select faultline.continue_as_new(array[gen_random_uuid()], array[]::bigint[], array['w/1'], '[{}]')")


@probe("continue_as_new", "forget_round")
def arguments_of_the_next_round_are_an_object_for_each_job(sessions: Sessions) -> None:
    q = sessions.open()
    leases = [q.new_lease(), q.new_lease()]
    large = '{"x": "' + "x" * 1_100_000 + '"}'
    with q.unsaved():
        for bad in ('{"0": {}, "1": {}}', "[{}]", "[{}, {}, {}]", "[{}, 1]", "[{}, null]", f"[{{}}, {large}]"):
            with refused(q, "FL005", "one object per lease", what=bad[:20]):
                q.execute(
                    "select faultline.continue_as_new(%s, %s, %s, %s)",
                    [lease.job_id for lease in leases],
                    [lease.fencing_token for lease in leases],
                    [lease.owner for lease in leases],
                    bad,
                )
    expect("written", reasons(q.run(flow.continue_as_new(leases, ['{"n": 0}', '{"n": 1}']))), [])
    expect("each its own", [q.job(lease.job_id).args for lease in leases], [{"n": 0}, {"n": 1}])


@probe("continue_as_new", "forget_round")
def a_new_round_begins_as_the_first_did(sessions: Sessions) -> None:
    q, listener = sessions.open(), sessions.open()
    lease = q.new_lease(max_attempts=9)
    q.execute("update faultline.open_jobs set lease_expires_at = created_at where id = %s", lease.job_id)
    q.reap()
    q.fail(q.claim_one(), delay=0)
    lease = q.claim_one()
    q.record_start(lease)
    q.progress(lease, 5)
    q.step(lease)
    q.run(streams.stream(lease, "tokens", 0, "[1]"))
    q.heartbeat(sleeping=["default"])
    listener.execute("listen faultline")
    expect("started over", _again(q, lease), [])
    expect("workers woken", len([one for one in listener.notices() if '"default"' in one]), 1)
    row = q.execute("select attempt, reaps, started, progress, last_error from faultline.open_jobs")
    expect("attempts, reaps, start, progress, error", row, [(0, 0, False, None, None)])
    rows = q.execute("select (select count(*) from faultline.streams), (select count(*) from faultline.steps)")
    expect("streams and steps", rows, [(0, 0)])


@probe("continue_as_new", "prune_flow", "keep_earlier_children")
def children_of_earlier_rounds_stay_members_of_the_flow(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    for number in range(2):
        spawn(q, lease, 2)
        q.complete(*q.claim(queue="children"))
        expect("started over", _again(q, lease), [])
        found = [("0.0", index) for index in range(2 * number + 2)]
        expect("edges", q.execute(_EDGES, lease.job_id), found)
        expect("edges of nobody", q.value("select count(*) from faultline.edges") - len(found), 0)
        lease = q.claim_one()
    expect("calls", q.value("select count(*) from faultline.calls where number <> '0.0'"), 0)
    q.complete(lease)
    expect("pruned with it", q.run(verbs.prune("flows", older_than_seconds=0)), 5)


@probe("continue_as_new", "sweep")
def a_job_with_open_children_does_not_start_over(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    spawn(q, lease, 1, "1")
    spawn(q, lease, 1, "2")
    closed = {"number": "1", "kind": "children", "name": "child", "outcome": "closed"}
    q.run(flow.record(lease, [closed]))
    with refused(q, "FL002", "children that have not ended", what="with an open child"):
        _again(q, lease)
    q.run(flow.record(lease, [{**closed, "number": "2"}]))
    with refused(q, "55P03", "cannot start over yet", what="while they are being cancelled"):
        _again(q, lease)
    q.run(flow.sweep())
    expect("afterwards", _again(q, lease), [])


@probe("continue_as_new", "kept_signal", "forget_round")
def a_new_round_receives_what_the_one_before_did_not(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    for key in (None, "k"):
        q.run(flow.signal(lease.job_id, "answer", 1, key=key))
        expect("received", q.run(flow.receive(lease, "1" if key is None else "2", name="answer")).status, "received")
        q.run(flow.signal(lease.job_id, "later", 1, key=key and "l"))
    q.run(flow.receive(lease, "3", name="answer"))
    q.run(flow.signal(lease.job_id, "answer", 3, for_call="3"))
    marks = "select name, key, received_by from faultline.signals order by id"
    kept = [("later", None, None), ("answer", "k", f"{lease.fencing_token}/2"), ("later", "l", None)]
    for _ in range(2):
        expect("started over", _again(q, lease), [])
        expect("signals", q.execute(marks), kept)
        lease = q.claim_one()
    suspend(q, lease, {**ANSWER, "name": "later"})
    Resolver(q).woken()
    expect("it is there", q.run(flow.receive(expect_woken(q, lease.job_id), "1", name="later")).status, "received")


@probe("continue_as_new", "forget_round")
def a_job_that_starts_over_says_so_in_the_journal(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    _again(q, lease)
    entry = q.journal(lease.job_id)[-1]
    expect("entry", (entry.event, entry.fencing_token, entry.detail), ("continued_as_new", 1, {"by": "its task"}))
