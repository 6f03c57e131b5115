"""Children of a running job: enqueued once, waited for together, and taken as they ended."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from faultline.core.errors import StaleLease
from faultline.core.model import Submission
from faultline.store import verbs
from faultline_proof.probes.probe import expect, probe, refused
from faultline_proof.sessions import numbered_id

if TYPE_CHECKING:
    from uuid import UUID

    from faultline.core.model import Lease
    from faultline_proof.sessions import Session, Sessions


def jobs(count: int, first: int = 0, **fields: Any) -> list[Submission]:
    return [Submission("child", f'{{"n": {n}}}', queue="children", **fields) for n in range(first, first + count)]


def spawn(q: Session, lease: Lease, submissions: list[Submission], number: str = "1", **fields: Any) -> int:
    return q.run(verbs.spawn(lease, number, submissions, **{"name": "child", "digest": "d", **fields}))


def spawned(q: Session) -> list[int]:
    """The numbers of the children that exist, open or done."""
    found = q.execute("select (args ->> 'n')::integer from faultline.jobs where queue = 'children' order by 1")
    return [n for (n,) in found]


def edges(q: Session, call_id: int) -> list[UUID]:
    return [child for (child,) in q.execute("select job_id from faultline.edges where call_id = %s order by index", call_id)]


@probe("spawn", "collect_outcomes", "outcomes", "history", "insert_chunk", "keep_chunk")
def children_are_enqueued_once_and_taken_as_they_ended(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    call_id = spawn(q, lease, jobs(3))
    expect("sent again", spawn(q, lease, jobs(3)), call_id)
    known = "select distinct flow_id, call_id from faultline.open_jobs where queue = 'children'"
    expect("what children know", q.execute(known), [(lease.job_id, call_id)])
    expect("before they end", q.run(verbs.collect_outcomes(lease, "1")).status, "open")
    first, second, third = q.claim(queue="children")
    expect("children", [child.args["n"] for child in (first, second, third)], [0, 1, 2])
    expect("edges", edges(q, call_id), [child.job_id for child in (first, second, third)])
    q.complete(first, third, result="good")
    q.fail(second, then="fail", error="bad")
    taken = q.run(verbs.collect_outcomes(lease, "1"))
    wanted = {"failed": {"1": {"state": "failed", "error": "bad"}}, "results": {}}
    expect("taken", (taken.status, taken.result), ("taken", wanted))
    expect("taken again", q.run(verbs.collect_outcomes(lease, "1")), taken)
    found = [(row.index, row.state, row.result, row.error) for row in q.run(verbs.outcomes(call_id))]
    rows = [(0, "succeeded", "good", None), (1, "failed", None, "bad"), (2, "succeeded", "good", None)]
    expect("outcomes", found, rows)
    expect("a page", [row.index for row in q.run(verbs.outcomes(call_id, 0, 1))], [1])
    (known_call,) = q.run(verbs.history(lease.job_id))
    expect("the history", (known_call.outcome, known_call.result, known_call.total), ("failed", wanted, 3))
    expect("the flows", q.execute("select id from faultline.flows"), [(lease.job_id,)])
    expect("broken", q.broken_invariants(), [])


@probe("spawn", "keep_chunk")
def a_map_goes_on_after_a_crash_between_its_chunks(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    call_id = spawn(q, lease, jobs(2), total=5)
    q.complete(*q.claim(queue="children"))
    expect("half of them have ended", q.run(verbs.collect_outcomes(lease, "1")).status, "open")
    q.release(lease)
    again = q.claim_one()
    for _ in range(2):
        expect("the first chunk again", spawn(q, again, jobs(2), total=5), call_id)
        expect("the second", spawn(q, again, jobs(2, 2), total=5, first_index=2), call_id)
        expect("the last", spawn(q, again, jobs(1, 4), total=5, first_index=4), call_id)
    expect("children", spawned(q), [0, 1, 2, 3, 4])
    found = [q.job(child).args["n"] for child in edges(q, call_id)]
    expect("their order", found, [0, 1, 2, 3, 4])
    (known,) = q.run(verbs.history(again.job_id))
    expect("on record", (known.total, known.spawned, known.outcome), (5, 5, None))


@probe("spawn", "same_call", "same_spawn")
def a_map_does_not_go_on_with_other_items(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    spawn(q, lease, jobs(2), total=4)
    changes: list[dict[str, Any]] = [{"digest": "e"}, {"total": 5}, {"total": 3}, {"name": "other"}]
    for changed in changes:
        for first_index in (0, 2):
            given = {"total": 4, "first_index": first_index, **changed}
            with refused(q, "FL005", "the program has changed", what=repr(given)):
                spawn(q, lease, jobs(min(2, given["total"] - first_index)), **given)
    with refused(q, "FL005", "the program has changed"):
        spawn(q, lease, jobs(2), total=4, kind="detached")
    for count, first_index in ((1, 3), (2, 1)):
        with refused(q, "FL005", "cannot go on", what=f"{count} jobs from {first_index} on"):
            spawn(q, lease, jobs(count, first_index), total=4, first_index=first_index)
    with refused(q, "FL005", "has 0 of its jobs"):
        spawn(q, lease, jobs(1), "2", total=2, first_index=1)
    expect("children", spawned(q), [0, 1])
    spawn(q, lease, jobs(2, 2), total=4, first_index=2)
    expect("and on", spawned(q), [0, 1, 2, 3])


@probe("spawn", "lock_lease")
def the_same_children_sent_twice_at_once_exist_once(sessions: Sessions) -> None:
    q, other = sessions.open(), sessions.open()
    lease = q.new_lease()
    q.begin()
    call_id = spawn(q, lease, jobs(2))
    second = other.start(lambda session: spawn(session, lease, jobs(2)))
    sessions.wait_until_blocked(other, second)
    q.commit()
    expect("the second", second.result(), call_id)
    expect("children", spawned(q), [0, 1])
    q.begin()
    spawn(q, lease, jobs(1, 2), "2")
    third = other.start(lambda session: spawn(session, lease, jobs(1, 2), "2"))
    sessions.wait_until_blocked(other, third)
    q.rollback()
    third.result()
    expect("after a rollback", spawned(q), [0, 1, 2])
    expect("broken", q.broken_invariants(), [])


@probe("spawn", "lock_lease")
def a_job_that_is_cancelled_has_no_new_children(sessions: Sessions) -> None:
    q, other = sessions.open(), sessions.open()
    lease = q.new_lease()
    q.begin()
    q.run(verbs.cancel(lease.job_id))
    late = other.start(lambda session: spawn(session, lease, jobs(1)))
    sessions.wait_until_blocked(other, late)
    q.commit()
    try:
        late.result()
    except StaleLease as stale:
        expect("refused", stale.reason, "not_running")
    else:
        raise AssertionError("a cancelled job has a new child")
    expect("children", spawned(q), [])
    expect("on record", q.refusals(lease.job_id), [("spawn", "not_running")])


@probe("spawn", "read_chunk")
def more_children_than_a_call_may_have_are_refused(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    with refused(q, "FL007", "cannot have 100001 jobs", "100000"):
        spawn(q, lease, jobs(1), total=100_001)
    with refused(q, "FL007", "cannot have 1001 jobs"):
        spawn(q, lease, jobs(1), total=1001, kind="detached")
    for count, total, first_index in ((1001, 2000, 0), (2, 1, 0), (1, 2, 2), (1, -1, 0), (1, 2, -1), (0, 1, 0)):
        with refused(q, "FL005", "are no chunk", what=f"{count} of {total} from {first_index} on"):
            spawn(q, lease, jobs(count), total=total, first_index=first_index)
    with refused(q, "FL005", "children or detached"):
        spawn(q, lease, jobs(1), kind="step")
    with refused(q, "FL005", "job 2 of 2", "has no task"):
        spawn(q, lease, [*jobs(1), Submission("")])
    expect("children", spawned(q), [])
    expect("calls", q.run(verbs.history(lease.job_id)), [])
    spawn(q, lease, [], "2")
    expect("of none", q.run(verbs.collect_outcomes(lease, "2")).result, {"failed": {}, "results": {}})


@probe("spawn", "keys", "set_watched", "insert_chunk", "keep_chunk")
def a_child_whose_key_exists_is_that_job(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    done_before = q.enqueue("child", {"n": 0}, queue="children", idempotency_key="done")
    q.complete(q.claim_one(queue="children"), result="done before")
    open_before = q.enqueue("child", {"n": 1}, queue="children", idempotency_key="open")
    keyed = [
        Submission("child", '{"n": 0}', queue="children", idempotency_key="done"),
        Submission("child", '{"n": 1}', queue="children", idempotency_key="open"),
        Submission("child", '{"n": 2}', queue="children", idempotency_key="new"),
        Submission("child", '{"n": 3}', queue="children"),
        Submission("child", '{"n": 2}', queue="children", idempotency_key="new"),
    ]
    call_id = spawn(q, lease, keyed)
    expect("sent again", spawn(q, lease, keyed), call_id)
    ids = edges(q, call_id)
    expect("known ones", (ids[:2], ids[4]), ([done_before, open_before], ids[2]))
    rows = "select (args ->> 'n')::integer, watched, call_id from faultline.open_jobs where queue = 'children' order by 1"
    expect("whose they are", q.execute(rows), [(1, True, None), (2, True, call_id), (3, None, call_id)])
    children = q.claim(queue="children")
    q.complete(*children, result="later")
    expect("nudged", q.value("select count(distinct job_id) from faultline.nudges"), 1)
    taken = q.run(verbs.collect_outcomes(lease, "1"))
    expect("copied", (taken.status, taken.result["results"]), ("taken", {"0": "done before", "1": "later"}))
    expect("of other arguments", q.run(verbs.history(lease.job_id))[0].outcome, "done")
    with refused(q, "FL003", "another task or other arguments"):
        spawn(q, lease, [Submission("child", '{"n": 9}', queue="children", idempotency_key="new")], "2")


@probe("spawn", "watch", "set_watched")
def a_job_that_is_locked_is_not_waited_for_yet(sessions: Sessions) -> None:
    q, holder = sessions.open(), sessions.open()
    lease = q.new_lease()
    target = q.enqueue("child", {"n": 0}, queue="children", idempotency_key="k")
    running = q.claim_one(queue="children")
    holder.begin()
    holder.fence(running)
    keyed = [Submission("child", '{"n": 0}', queue="children", idempotency_key="k")]
    with refused(q, "55P03", "is locked"):
        spawn(q, lease, keyed)
    with refused(q, "55P03", "is locked"):
        q.run(verbs.watch(lease, "2", [target], name="w", digest="d"))
    expect("calls", q.run(verbs.history(lease.job_id)), [])
    holder.complete(running, result="done")
    holder.commit()
    spawn(q, lease, keyed)
    q.run(verbs.watch(lease, "2", [target], name="w", digest="d"))
    for number in ("1", "2"):
        taken = q.run(verbs.collect_outcomes(lease, number))
        expect(f"call {number}", (taken.status, taken.result["results"]), ("taken", {"0": "done"}))


@probe("spawn", "insert_chunk")
def children_have_ids_of_their_own(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    done = q.new_lease()
    q.complete(done)
    for taken in (done.job_id, lease.job_id):
        with refused(q, "FL003", "a job with the id of one of its jobs exists"):
            spawn(q, lease, jobs(1, id=taken))
    expect("calls", q.run(verbs.history(lease.job_id)), [])
    new = numbered_id(9)
    call_id = spawn(q, lease, jobs(1, id=new))
    expect("sent again", spawn(q, lease, jobs(1, id=new)), call_id)
    expect("its id", edges(q, call_id), [new])


@probe("spawn", "keep_chunk")
def detached_jobs_are_enqueued_once_and_belong_to_nobody(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    for _ in range(2):
        spawn(q, lease, jobs(2), kind="detached")
    (known,) = q.run(verbs.history(lease.job_id))
    rows = q.execute(
        "select id::text, flow_id, call_id, watched from faultline.open_jobs where queue = 'children' order by id"
    )
    expect("on record", (known.outcome, known.result), ("done", [row[0] for row in rows]))
    expect("whose they are", [row[1:] for row in rows], [(None, None, None)] * 2)
    expect("edges", q.value("select count(*) from faultline.edges"), 0)
    expect("claimed as plain jobs", [lease.in_flow for lease in q.claim(queue="children")], [False, False])


@probe("collect_outcomes")
def what_was_taken_stays_whatever_becomes_of_the_children(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    call_id = spawn(q, lease, jobs(2), policy="keep")
    good, bad = q.claim(queue="children")
    q.complete(good, result="good")
    q.fail(bad, then="fail", error="bad")
    taken = q.run(verbs.collect_outcomes(lease, "1"))
    expect("kept", q.run(verbs.history(lease.job_id))[0].outcome, "done")
    before = q.run(verbs.outcomes(call_id))
    # As an operator with rights on the tables could do it.
    update = (
        "update faultline.open_jobs set state = 'queued', next_run_at = faultline.clock(), finished_at = null where id = %s"
    )
    q.execute(update, bad.job_id)
    expect("taken while it is open again", q.run(verbs.collect_outcomes(lease, "1")), taken)
    expect("outcomes then", q.run(verbs.outcomes(call_id)), before)
    (again,) = q.claim(queue="children")
    q.complete(again, result="good after all")
    expect("taken after its success", q.run(verbs.collect_outcomes(lease, "1")), taken)
    expect("outcomes after that", q.run(verbs.outcomes(call_id)), before)
    sessions.hand.execute("delete from faultline.ledger where job_id = %s", good.job_id)
    with refused(q, "FL004", "number 0 of this call", "was pruned"):
        q.run(verbs.outcomes(call_id))


@probe("collect_outcomes", "watch", "outcomes")
def the_result_of_a_watched_job_is_kept_after_the_job(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    target, gone = q.enqueue(queue="other"), q.enqueue(queue="other")
    call_id = q.run(verbs.watch(lease, "1", [target, gone], name="w", digest="d", policy="keep"))
    q.complete(*q.claim(queue="other"), result={"paid": 100})
    sessions.hand.execute("delete from faultline.ledger where job_id = %s", gone)
    taken = q.run(verbs.collect_outcomes(lease, "1"))
    expect("results", taken.result["results"], {"0": {"paid": 100}})
    expect("pruned before", taken.result["failed"]["1"]["state"], "pruned")
    sessions.hand.execute("delete from faultline.ledger")
    expect("taken again", q.run(verbs.collect_outcomes(lease, "1")), taken)
    found = [(row.state, row.result) for row in q.run(verbs.outcomes(call_id))]
    expect("outcomes", found, [("succeeded", {"paid": 100}), ("pruned", None)])


@probe("collect_outcomes")
def a_call_is_over_when_all_have_ended_or_by_its_policy(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    lease = q.new_lease()
    for number, policy in (("1", "raise"), ("2", "keep"), ("3", "fast")):
        call_id = spawn(q, lease, jobs(2), number, policy=policy)
        expect("of this call", [row.index for row in q.run(verbs.outcomes(call_id))], [0, 1])
    leases = q.claim(queue="children")
    q.fail(*leases[::2], then="fail", error="bad")
    found = [q.run(verbs.collect_outcomes(lease, number)).status for number in ("1", "2", "3")]
    expect("with one that failed and one open", found, ["open", "open", "taken"])
    q.complete(*leases[1::2])
    found = [q.run(verbs.collect_outcomes(lease, number)).status for number in ("1", "2")]
    expect("when all have ended", found, ["taken", "taken"])
    found = [known.outcome or "" for known in q.run(verbs.history(lease.job_id))]
    expect("outcomes", found, ["failed", "done", "failed"])
    expect("who failed by then", q.run(verbs.collect_outcomes(lease, "3")).result["failed"].keys(), {"0"})
    target = q.enqueue(queue="other")
    q.run(verbs.watch(lease, "4", [target], name="w", digest="d"))
    sessions.clock.advance(30 * 86_400 - 1)
    expect("before its time", q.run(verbs.collect_outcomes(lease, "4")).status, "open")
    sessions.clock.advance(1)
    expect("at its time", q.run(verbs.collect_outcomes(lease, "4")).status, "timeout")
    q.complete(q.claim_one(queue="other"))
    expect("later", q.run(verbs.collect_outcomes(lease, "4")).status, "timeout")
    for number in ("9", "x"):
        with refused(q, "FL005", "no call"):
            q.run(verbs.collect_outcomes(lease, number))


@probe("collect_outcomes", "lock_lease")
def what_ends_while_the_lock_is_waited_for_is_seen(sessions: Sessions) -> None:
    q, other, holder = sessions.open(), sessions.open(), sessions.open()
    lease = q.new_lease()
    spawn(q, lease, jobs(1))
    (child,) = q.claim(queue="children")
    holder.begin()
    holder.fence(lease)
    answer = other.start(lambda session: session.run(verbs.collect_outcomes(lease, "1")))
    sessions.wait_until_blocked(other, answer)
    q.complete(child)
    holder.commit()
    expect("taken", answer.result().status, "taken")


@probe("watch", "refuse_cycle")
def nobody_waits_for_itself_or_for_one_that_waits_for_it(sessions: Sessions) -> None:
    q = sessions.open()
    q.enqueue(idempotency_key="root", priority=-100)
    root = q.claim_one()
    spawn(q, root, jobs(1))
    (child,) = q.claim(queue="children")
    spawn(q, child, jobs(1), "1")
    (grandchild,) = q.claim(queue="children")
    for target, text in (
        (grandchild.job_id, "itself"),
        (child.job_id, "which waits for it"),
        (root.job_id, "which waits for it"),
    ):
        with refused(q, "FL005", text):
            q.run(verbs.watch(grandchild, "1", [target], name="w", digest="d"))
    with refused(q, "FL005", "which waits for it"):
        q.run(verbs.spawn(grandchild, "1", [Submission("t", idempotency_key="root")], name="c", digest="d"))
    with refused(q, "FL005", "itself"):
        q.run(verbs.spawn(root, "2", [Submission("t", idempotency_key="root")], name="c", digest="d"))
    one, two, three = q.new_lease(), q.new_lease(), q.new_lease()
    q.run(verbs.watch(one, "1", [two.job_id], name="w", digest="d"))
    q.run(verbs.watch(two, "1", [three.job_id], name="w", digest="d"))
    with refused(q, "FL005", "which waits for it"):
        q.run(verbs.watch(three, "1", [one.job_id], name="w", digest="d"))
    q.complete(three)
    q.run(verbs.collect_outcomes(two, "1"))
    q.run(verbs.watch(root, "2", [two.job_id, two.job_id], name="w", digest="d"))
    q.run(verbs.record(one, [{"number": "1", "kind": "watch", "name": "w", "digest": "d", "outcome": "closed"}]))
    q.run(verbs.watch(two, "2", [one.job_id], name="w", digest="d"))


@probe("watch", "set_watched")
def a_watched_job_tells_all_who_watch_it(sessions: Sessions) -> None:
    q = sessions.open()
    one, two = q.new_lease(), q.new_lease()
    target = q.enqueue(queue="other")
    for lease in (one, two):
        call_id = q.run(verbs.watch(lease, "1", [target], name="w", digest="d"))
        expect("sent again", q.run(verbs.watch(lease, "1", [target], name="w", digest="d")), call_id)
        expect("whose it is", q.job(target).flow_id, None)
    with refused(q, "FL005", "the program has changed"):
        q.run(verbs.watch(one, "1", [target], name="w", digest="e"))
    q.complete(q.claim_one(queue="other"), result=1)
    nudged = {job_id for (job_id,) in q.execute("select job_id from faultline.nudges")}
    expect("nudged", nudged, {one.job_id, two.job_id})
    for lease in (one, two):
        expect("taken", q.run(verbs.collect_outcomes(lease, "1")).result["results"], {"0": 1})
    unknown = q.value("select gen_random_uuid()")
    with refused(q, "FL004", f"job {unknown}, which does not exist"):
        q.run(verbs.watch(one, "2", [target, unknown], name="w", digest="d"))
    with refused(q, "FL005", "at least one"):
        q.run(verbs.watch(one, "2", [], name="w", digest="d"))
    with refused(q, "FL007", "1000 jobs, not 1001"):
        q.run(verbs.watch(one, "2", [target] * 1001, name="w", digest="d"))


@probe("spawn", "wake_new")
def workers_that_sleep_are_woken_for_children(sessions: Sessions) -> None:
    q, listener = sessions.open(), sessions.open()
    lease = q.new_lease()
    listener.execute("listen faultline")
    spawn(q, lease, jobs(1))
    expect("without workers", listener.notices(), [])
    for number in range(5):
        q.heartbeat(f"w{number}", sleeping=["default"])
    q.execute("update faultline.workers set queues = '{children,default}', sleeping = '{children,default}'")
    spawn(q, lease, jobs(1), "2")
    (hint,) = listener.notices()
    expect("a hint", json.loads(hint)["queue"], "children")
    expect("workers that are woken for one", len(json.loads(hint)["workers"]), 3)
    spawn(q, lease, jobs(1, delay_seconds=60), "3")
    expect("for later", listener.notices(), [])


@probe("spawn", "read_jobs")
def children_that_make_no_sense_are_refused_by_their_number(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    good = '{"task": "child", "queue": "children"}'
    bad = {
        '{"task": "child", "colour": "red"}': 'no job has a field "colour"',
        '{"task": "child", "args": {"a": "\\u0000"}}': "is refused",
        '{"task": "child", "priority": "high"}': "is refused",
        '{"task": "child", "priority": 1001}': "its priority is outside",
        '{"task": "child", "id": "x"}': "is refused",
        "7": "it is not a JSON object",
    }
    sql = "select call_id from faultline.spawn(%s, %s, %s, '1', 'children', 'c', 'd', 'raise', 2, 0, %s)"
    for job, text in bad.items():
        with refused(q, "FL005", "job 2 of 2", text, what=job):
            q.execute(sql, lease.job_id, lease.fencing_token, lease.owner, f"[{good}, {job}]")
    for document in ("{}", "[", "", "null"):
        with refused(q, "FL005", what=document):
            q.execute(sql, lease.job_id, lease.fencing_token, lease.owner, document)
    expect("children", spawned(q), [])
