"""Who may wait, what a look finds, and what is kept for the next one."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from faultline.core.model import Submission
from faultline.store import verbs
from faultline.store.verbs import flow
from faultline_proof.probes.flow_stage import (
    ANSWER,
    CHILDREN,
    Resolver,
    expect_woken,
    is_waiting,
    spawn,
    suspend,
    suspended_parent,
)
from faultline_proof.probes.probe import expect, probe, reasons, refused

if TYPE_CHECKING:
    from uuid import UUID

    from faultline_proof.sessions import Session, Sessions

_SLEEP: dict[str, Any] = {"number": "9", "kind": "sleep", "name": "sleep", "seconds": 3600}


def _seconds_until(q: Session, job_id: UUID) -> int:
    query = "select extract(epoch from next_run_at - faultline.clock())::float8 from faultline.open_jobs where id = %s"
    seconds: float = q.value(query, job_id)
    return round(seconds)


@probe("suspend", "refuse", "half")
def nobody_suspends_a_job_without_its_lease(sessions: Sessions) -> None:
    q = sessions.open()
    old = q.new_lease()
    q.release(old)
    new = q.claim_one(worker="another")
    for how, lost in (
        ("an old token", replace(new, fencing_token=old.fencing_token)),
        ("another owner", replace(new, owner=old.owner)),
    ):
        expect(f"with {how}", reasons(suspend(q, lost, _SLEEP)), ["token_mismatch"])
    expect("running", q.state(new.job_id).value, "running")
    with refused(q, "FL005", "arrays of the same length", what="half a lease"):
        q.execute("select faultline.suspend(array[gen_random_uuid()], array[]::bigint[], array['w/1'], '[[{}]]')")


@probe("suspend", "check_waits")
def a_wait_that_makes_no_sense_is_refused(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    sleep = json.dumps(_SLEEP)
    for bad in (f'{{"0": [{sleep}]}}', f"[[{sleep}], [{sleep}]]", "[]", "[[]]", "[{}]"):
        with refused(q, "FL005", "one array of calls per lease", what=bad):
            q.execute("select faultline.suspend(%s, %s, %s, %s)", [lease.job_id], [lease.fencing_token], [lease.owner], bad)
    expect("running", q.state(lease.job_id).value, "running")


@probe("suspend", "keep_waits")
def each_job_of_a_batch_waits_for_its_own_and_until_the_first_of_its_times(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    leases = [q.new_lease(), q.new_lease()]
    q.run(verbs.suspend(leases, [json.dumps([_SLEEP]), json.dumps([{**_SLEEP, "seconds": 60}, {**ANSWER, "seconds": 600}])]))
    expect("seconds", [_seconds_until(q, lease.job_id) for lease in leases], [3600, 60])
    expect("flows", q.value("select count(*) from faultline.flows"), 2)


@probe("suspend", "can_resume", "wake_for")
def a_wait_that_is_over_is_due_at_once(sessions: Sessions) -> None:
    q, listener = sessions.open(), sessions.open()
    sessions.clock.take()
    q.heartbeat(sleeping=["default"])
    listener.execute("listen faultline")
    ended, timed, failed = (q.new_lease() for _ in range(3))
    q.run(verbs.record(ended, [{"number": "9", "kind": "sleep", "name": "sleep", "outcome": "done"}]))
    suspend(q, ended, _SLEEP, ANSWER)
    q.run(verbs.receive(timed, "1", name="answer", seconds=5))
    sessions.clock.advance(6)
    suspend(q, timed, ANSWER)
    spawn(q, failed, 2, policy="fast")
    q.fail(q.claim_one(queue="children"), then="fail")
    listener.notices()
    suspend(q, failed, CHILDREN)
    expect("waiting", [is_waiting(q, lease.job_id) for lease in (ended, timed, failed)], [False] * 3)
    expect("workers woken", len([one for one in listener.notices() if '"default"' in one]), 1)
    expect("due", {lease.job_id for lease in q.claim()}, {ended.job_id, timed.job_id, failed.job_id})


@probe("suspend", "can_resume", "resolve", "keep_waits")
def what_is_not_waited_for_wakes_nobody(sessions: Sessions) -> None:
    q = sessions.open()
    resolver = Resolver(q)
    lease = q.new_lease()
    first, second = ({**ANSWER, "number": str(n), "name": name} for n, name in ((1, "a"), (2, "b")))
    suspend(q, lease, first, second)
    q.run(verbs.signal(lease.job_id, "b", 1))
    expect("woken", resolver.woken(), 1)
    lease = expect_woken(q, lease.job_id)
    q.run(verbs.receive(lease, "2", name="b"))
    suspend(q, lease, _SLEEP)
    q.run(verbs.signal(lease.job_id, "a", 1))
    expect("by what it waited for before", resolver.woken(), 0)
    sessions.hand.execute("update faultline.calls set awaited = true where number = '2'")
    q.run(verbs.signal(lease.job_id, "b", 1))
    expect("by what has ended", resolver.woken(), 0)


@probe("can_resume", "resolve", "open_child")
def a_look_waits_for_all_that_are_to_be_enqueued_and_remembers_one_that_is_open(sessions: Sessions) -> None:
    q = sessions.open()
    resolver = Resolver(q)
    half, whole = q.new_lease(), q.new_lease()
    child = [Submission("child", queue="children")]
    q.run(verbs.spawn(half, "1", child, name="child", digest=None, total=2))
    q.complete(*q.claim(queue="children"))
    spawn(q, whole, 3)
    for lease in (half, whole):
        suspend(q, lease)
    expect("waiting", is_waiting(q, half.job_id), True)
    q.complete(q.claim_one(queue="children"))
    sessions.hand.execute("insert into faultline.nudges (job_id, kind) values (%s, 0)", half.job_id)
    expect("woken", resolver.woken(), 0)
    remembered = q.value("select open_index from faultline.calls where job_id = %s", whole.job_id)
    expect("the one that is open", remembered, 2)


@probe("open_child", "has_failed")
def a_child_is_looked_for_where_and_only_where_it_was_asked_for(sessions: Sessions) -> None:
    q = sessions.open()
    lease, other = q.new_lease(), q.new_lease()
    call, others = spawn(q, lease, 5), spawn(q, other, 9)
    ids = [row[0] for row in q.execute("select job_id from faultline.edges where call_id = %s order by index", call)]
    looks = ((9, -1, 4), (3, -1, 3), (2, 1, 2), (1, 1, None))
    for upper, above, found in looks:
        look = q.value("select faultline.open_child(%s, %s, %s)", call, upper, above)
        expect(f"open up to {upper} and above {above}", look, found)
    q.run(verbs.cancel(ids[4]))
    expect("one that was cancelled", q.value("select faultline.open_child(%s, 9)", call), 3)
    failed = "select array(select faultline.has_failed(c) from unnest(%s::bigint[]) as u (c))"
    expect("cancelled", q.value(failed, [call, others]), [True, False])


@probe("can_resume", "resolve", "nudge_waiters", "fail", "has_failed", "apply_nudges", "end_badly")
def a_failure_is_looked_for_when_one_is_told_of_and_not_otherwise(sessions: Sessions) -> None:
    q = sessions.open()
    resolver = Resolver(q)
    parent, children = suspended_parent(q, 3, policy="fast")
    q.fail(children[0], then="fail")
    sessions.hand.execute("update faultline.nudges set kind = 0")
    expect("by a nudge that says nothing of it", resolver.woken(), 0)
    q.fail(children[1], then="fail")
    expect("by one that does", resolver.woken(), 1)
    expect("marked", q.value("select suspended from faultline.open_jobs where id = %s", parent), None)
    expect_woken(q, parent)


@probe("resolve", "apply_nudges", "pause_nudges")
def a_failure_is_not_forgotten_while_the_row_is_held(sessions: Sessions) -> None:
    q, holder = sessions.open(), sessions.open()
    sessions.clock.take()
    resolver = Resolver(q)
    parent, children = suspended_parent(q, 2, policy="fast")
    holder.begin()
    holder.execute("select from faultline.open_jobs where id = %s for update", parent)
    q.fail(children[0], then="fail")
    expect("while it is held", resolver.woken(), 0)
    holder.rollback()
    sessions.clock.advance(1)
    expect("afterwards", resolver.woken(), 1)


@probe("join_flow")
def a_child_stays_in_the_flow_of_its_parent(sessions: Sessions) -> None:
    q = sessions.open()
    parent, (child,) = suspended_parent(q)
    q.run(verbs.record(child, [{"number": "1", "kind": "step", "name": "s", "outcome": "done"}]))
    q.complete(child)
    expect("its flow", q.value("select flow_id from faultline.jobs where id = %s", child.job_id), parent)
    expect("flows", q.value("select count(*) from faultline.flows"), 1)


@probe("resolve", "read_nudges")
def a_cursor_is_believed_on_its_own_run_of_the_server_only(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    suspend(q, lease, ANSWER)
    resolver = Resolver(q)
    resolver.woken()
    q.run(verbs.signal(lease.job_id, "answer", 1))
    # As if it had been written before the cursor was, by the number of its transaction.
    sessions.hand.execute("update faultline.nudges set xid = '3'")
    expect("with the cursor", resolver.woken(), 0)
    resolver.cursor = json.dumps({**json.loads(resolver.cursor or ""), "run": "another"})
    expect("on another run", resolver.woken(), 1)


@probe("resolve", "read_nudges")
def what_was_committed_late_is_found_however_much_it_is(sessions: Sessions) -> None:
    q, late = sessions.open(), sessions.open()
    resolver = Resolver(q)
    leases = [q.new_lease() for _ in range(3)]
    for lease in leases:
        suspend(q, lease, ANSWER)
    late.begin()
    for lease in leases:
        late.run(verbs.signal(lease.job_id, "answer", 1))
    q.enqueue(queue="other")
    expect("before the commit", resolver.woken(), 0)
    late.commit()
    expect("one at a time", [resolver.woken(max_nudges=1) for _ in range(3)], [1, 1, 1])


@probe("resolve", "suspend", "can_resume", "apply_nudges")
def a_job_that_goes_to_wait_while_others_are_looked_at_is_woken(sessions: Sessions) -> None:
    q, waits, signals, holder = (sessions.open() for _ in range(4))
    sessions.clock.take()
    first = q.new_lease()
    second, children = suspended_parent(q, 2)
    resolver = Resolver(q)
    resolver.woken()
    waits.begin()
    suspend(waits, first, ANSWER)
    signals.run(verbs.signal(first.job_id, "answer", 1))
    signals.complete(children[1])
    holder.begin()
    holder.execute("select from faultline.calls where job_id = %s for update", second)
    woken = q.start(lambda _: resolver.woken())
    sessions.wait_until_blocked(q, woken)
    waits.commit()
    holder.rollback()
    expect("at first", woken.result(), 0)
    sessions.clock.advance(1)
    expect("then", resolver.woken(), 1)
    expect_woken(q, first.job_id)


@probe("watch", "complete", "nudge_waiters")
def who_watches_a_job_is_woken_by_its_completion(sessions: Sessions) -> None:
    q = sessions.open()
    watched, lease = q.new_lease(), q.new_lease()
    q.run(flow.watch(lease, "1", [watched.job_id], name="w", digest=None))
    suspend(q, lease, {"number": "1", "kind": "watch", "name": "w"})
    q.complete(watched)
    expect("woken", Resolver(q).woken(), 1)
    expect_woken(q, lease.job_id)


@probe("nudge_waiters", "complete")
def a_job_is_nudged_once_by_ends_that_come_together(sessions: Sessions) -> None:
    q = sessions.open()
    first, second, lease = q.new_lease(), q.new_lease(), q.new_lease()
    for number, watched in (("1", first), ("2", second)):
        q.run(flow.watch(lease, number, [watched.job_id], name="w", digest=None))
    q.complete(first, second)
    expect("nudges", q.value("select count(*) from faultline.nudges where job_id = %s", lease.job_id), 1)
