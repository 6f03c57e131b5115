"""What ends in a flow ends as a whole: a tree that is cancelled, a flow that is retried, and one that is forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING

from faultline.core.model import Submission
from faultline.store import verbs
from faultline_proof.probes.flow_stage import (
    ANSWER,
    Resolver,
    expect_woken,
    is_waiting,
    spawn,
    suspend,
    suspended_parent,
    sweep_all,
)
from faultline_proof.probes.probe import expect, probe, refused

if TYPE_CHECKING:
    from faultline_proof.sessions import Session, Sessions

_OPEN = "select count(*) from faultline.open_jobs where state in ('queued', 'running')"
_SWEPT = "cancelled: its parent has ended"


def _states(q: Session) -> dict[str, int]:
    return dict(q.execute("select state, count(*)::integer from faultline.jobs where queue = 'children' group by 1"))


@probe("cancel", "sweep", "cancel_children_batch", "is_swept", "wake_resolvers", "cancel_children", "next_children")
def the_children_of_a_cancelled_job_are_cancelled_however_deep(sessions: Sessions) -> None:
    q, listener = sessions.open(), sessions.open()
    parent, (first, *_) = suspended_parent(q, 3)
    spawn(q, first, 2)
    running = q.claim_one(queue="children")
    listener.execute("listen faultline")
    q.run(verbs.cancel(parent))
    expect("a hint to resolvers", any('"nudge"' in notice for notice in listener.notices()), True)
    sweep_all(q)
    expect("open jobs", q.value(_OPEN), 0)
    expect("sweeps left", q.value("select count(*) from faultline.sweeps"), 0)
    expect("what is recorded", q.journal(running.job_id)[-1].detail["reason"], "parent")
    expect("the lease of a running child", q.renew(running).stale[0].reason.value, "not_running")
    expect("a hint to its worker", any(str(running.job_id) in notice for notice in listener.notices()), True)
    expect("invariants", q.broken_invariants(), [])


@probe("fail", "reap", "sweep", "end_badly", "lost_jobs")
def a_job_that_has_failed_leaves_no_open_children(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    for is_reaped in (False, True):
        lease = q.new_lease(max_attempts=1)
        spawn(q, lease, 2)
        if is_reaped:
            q.record_start(lease)
            sessions.clock.advance(1000)
            q.reap()
        else:
            q.fail(lease, then="fail")
        expect("state", q.state(lease.job_id).value, "failed")
        sweep_all(q)
        expect("open jobs", q.value(_OPEN), 0)


@probe("sweep", "cancel_children_batch", "next_children")
def a_sweep_cancels_no_more_than_it_was_asked_to_and_goes_on(sessions: Sessions) -> None:
    q = sessions.open()
    parent, _ = suspended_parent(q, 10)
    q.run(verbs.cancel(parent))
    most, left = 4, q.value(_OPEN)
    expect("open at first", left, 10)
    for _ in range(20):
        more = q.run(verbs.sweep(most))
        now = q.value(_OPEN)
        expect("cancelled at once", left - now <= most, True)
        left = now
        if not more:
            break
    expect("open at last", left, 0)


@probe("sweep", "cancel_children_batch", "cancel_children")
def a_child_whose_row_is_held_is_swept_when_it_is_free(sessions: Sessions) -> None:
    q, holder = sessions.open(), sessions.open()
    parent, children = suspended_parent(q, 5)
    holder.begin()
    holder.fence(children[0])
    q.run(verbs.cancel(parent))
    for _ in range(5):
        sessions.at_once(q, lambda session: session.run(verbs.sweep(3)))
    expect("open beside the held one", q.value(_OPEN), 1)
    expect("sweeps", q.value("select count(*) from faultline.sweeps"), 1)
    holder.commit()
    sweep_all(q)
    expect("open when it is free", q.value(_OPEN), 0)


@probe("sweep", "cancel_children_batch", "is_swept", "next_children", "cancel_children")
def a_sweep_takes_the_children_of_its_own_call_only(sessions: Sessions) -> None:
    q = sessions.open()
    stranger = q.enqueue("child", queue="children", idempotency_key="stranger")
    lease = q.new_lease()
    keyed = [Submission("child", queue="children", idempotency_key="stranger")]
    q.run(verbs.spawn(lease, "1", keyed, name="child", digest=None))
    loser = spawn(q, lease, 2, "2")
    spawn(q, lease, 3, "3")
    closed = {"number": "2", "kind": "children", "name": "child", "outcome": "closed"}
    q.run(verbs.record(lease, [closed]))
    sweep_all(q)
    own = "select count(*) from faultline.open_jobs where call_id = %s and state = 'cancelled'"
    expect("children of the closed call", q.value(own, loser), 2)
    expect("cancelled in all", _states(q), {"cancelled": 2, "queued": 4})
    q.fail(lease, then="fail")
    sweep_all(q)
    expect("all but the stranger", _states(q), {"cancelled": 5, "queued": 1})
    expect("the stranger", q.state(stranger).value, "queued")


@probe("retry", "reopen_flows", "sweep", "requeue_ended_jobs")
def a_job_that_is_retried_before_its_sweep_keeps_its_children(sessions: Sessions) -> None:
    q = sessions.open()
    parent, children = suspended_parent(q, 3)
    q.run(verbs.cancel(parent))
    q.run(verbs.retry(parent))
    sweep_all(q)
    expect("children", [q.state(child.job_id).value for child in children], ["running"] * 3)
    # A sweep that has begun is dropped under the lock of the parent's row.
    q.execute("insert into faultline.sweeps (job_id) values (%s)", parent)
    sweep_all(q)
    expect("children", [q.state(child.job_id).value for child in children], ["running"] * 3)


@probe("retry", "reopen_flows", "requeue_ended_jobs", "stopped_at")
def with_a_failed_parent_its_failed_and_swept_children_start_over(sessions: Sessions) -> None:
    q = sessions.open()
    resolver = Resolver(q)
    parent, (good, bad) = suspended_parent(q, 2)
    q.complete(good)
    q.fail(bad, then="fail")
    resolver.woken()
    lease = expect_woken(q, parent)
    expect("failed", list(q.run(verbs.collect_outcomes(lease, "1")).result["failed"]), ["1"])
    spawn(q, lease, 2, "2")
    q.fail(lease, then="fail")
    sweep_all(q)
    q.run(verbs.retry(parent))
    expect("children", _states(q), {"succeeded": 1, "queued": 2, "failed": 1})
    outcomes = "select number, outcome from faultline.calls where job_id = %s order by 1"
    # It went on past the first call, so that one is history.
    expect("calls", q.execute(outcomes, parent), [("1", "failed"), ("2", None)])


@probe("retry", "reopen_flows", "stopped_at")
def a_retry_opens_the_wait_at_which_the_program_stopped(sessions: Sessions) -> None:
    q = sessions.open()
    resolver = Resolver(q)
    parent, (bad, other) = suspended_parent(q, 2)
    q.fail(bad, then="fail")
    q.complete(other)
    resolver.woken()
    lease = expect_woken(q, parent)
    q.run(verbs.collect_outcomes(lease, "1"))
    q.fail(lease, then="fail")
    sweep_all(q)
    q.run(verbs.retry(parent))
    again = expect_woken(q, parent)
    expect("what it takes now", q.run(verbs.collect_outcomes(again, "1")).status, "open")
    suspend(q, again)
    q.complete(q.claim_one(queue="children"))
    expect("woken", resolver.woken(), 1)
    taken = q.run(verbs.collect_outcomes(expect_woken(q, parent), "1"))
    expect("what it takes then", (taken.status, taken.result["failed"]), ("taken", {}))
    expect("invariants", q.broken_invariants(), [])


@probe("retry", "reopen_flows")
def with_a_cancelled_parent_all_its_children_that_did_not_succeed_start_over(sessions: Sessions) -> None:
    q = sessions.open()
    parent, (failed, swept, cancelled) = suspended_parent(q, 3)
    spawn(q, swept, 1)
    q.fail(failed, then="fail")
    q.run(verbs.cancel(cancelled.job_id, reason="a person"))
    q.run(verbs.cancel(parent))
    sweep_all(q)
    expect("before", _states(q), {"failed": 1, "cancelled": 3})
    q.run(verbs.retry(parent))
    expect("after", _states(q), {"queued": 4})


@probe("why_not_retried", "retry", "retry_failed", "retry_job_of_flow")
def a_child_is_not_retried_when_its_parent_has_ended_or_gone_on(sessions: Sessions) -> None:
    q = sessions.open()
    resolver = Resolver(q)
    ended, (orphan,) = suspended_parent(q, 1, policy="keep")
    q.fail(orphan, then="fail")
    q.run(verbs.cancel(ended))
    gone_on, (left,) = suspended_parent(q, 1, policy="keep")
    q.fail(left, then="fail")
    resolver.woken()
    q.run(verbs.collect_outcomes(expect_woken(q, gone_on), "1"))
    waiting, (free, _) = suspended_parent(q, 2)
    q.fail(free, then="fail")
    with refused(q, "FL002", str(ended), "retry that job instead"):
        q.run(verbs.retry(orphan.job_id))
    with refused(q, "FL002", str(gone_on), "fork that job instead"):
        q.run(verbs.retry(left.job_id))
    expect("retried", q.value("select retried from faultline.retry_failed('children')"), 1)
    expect("the one whose parent waits", q.state(free.job_id).value, "queued")
    expect("waiting", is_waiting(q, waiting), True)


@probe("why_not_retried", "retry")
def a_child_is_not_retried_while_its_parent_takes_it(sessions: Sessions) -> None:
    q, other = sessions.open(), sessions.open()
    lease = q.new_lease()
    spawn(q, lease, 1, policy="keep")
    child = q.claim_one(queue="children")
    q.fail(child, then="fail")
    q.begin()
    q.run(verbs.collect_outcomes(lease, "1"))
    with refused(other, "55P03", "try again"):
        sessions.at_once(other, lambda session: session.run(verbs.retry(child.job_id)))
    q.commit()
    with refused(other, "FL002"):
        other.run(verbs.retry(child.job_id))


@probe("requeue_ended_jobs", "reopen_flows", "cancel_waiting", "can_resume", "resolve")
def a_job_of_a_graph_waits_again_when_the_one_before_it_is_retried(sessions: Sessions) -> None:
    q = sessions.open()
    resolver = Resolver(q)
    root, (before, after) = suspended_parent(q, 2, max_attempts=3)
    q.run(verbs.watch(after, "1", [before.job_id], name="after", digest=None))
    suspend(q, after, {"number": "1", "kind": "watch", "name": "after"})
    sessions.hand.execute("update faultline.calls set kind = 'after', policy = 'cancel' where job_id = %s", after.job_id)
    q.fail(before, then="fail")
    while resolver.woken() or resolver.left_over:
        pass
    expect("after its upstream failed", q.state(after.job_id).value, "cancelled")
    expect("why", q.journal(after.job_id)[-1].detail["reason"], "upstream")
    expect("the root goes on", expect_woken(q, root).job_id, root)
    q.run(verbs.retry(before.job_id))
    expect("it waits again", is_waiting(q, after.job_id), True)
    resolver.woken()
    expect("while its upstream is open", is_waiting(q, after.job_id), True)
    due = q.claim(queue="children")
    expect("due", [lease.job_id for lease in due], [before.job_id])
    q.complete(*due)
    expect("woken by its upstream", resolver.woken(), 1)
    expect("then it runs", q.claim_one(queue="children").job_id, after.job_id)


@probe("prune", "prune_flow", "forget_jobs", "is_live", "prune_flows", "prune_ledger", "prune_failed")
def a_flow_is_forgotten_as_a_whole(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    resolver = Resolver(q)
    watched = q.enqueue(queue="other")
    parent, (first, second) = suspended_parent(q, 2)
    spawn(q, first, 3)
    q.run(verbs.signal(parent, "answer", 1))
    q.run(verbs.watch(second, "1", [watched], name="other", digest=None))
    q.complete(*q.claim(queue="children"), *q.claim(queue="other"))
    q.complete(first)
    q.fail(second, then="fail")
    resolver.woken()
    lease = expect_woken(q, parent)
    sessions.clock.advance(1000)
    for what in ("ledger", "failed"):
        q.run(verbs.prune(what, older_than_seconds=100))
    expect("jobs of a live flow", q.value("select count(*) from faultline.jobs where flow_id is not null"), 6)
    expect("pruned while it lives", q.run(verbs.prune("flows", older_than_seconds=100)), 0)
    q.complete(lease)
    sessions.clock.advance(90)
    expect("pruned too early", q.run(verbs.prune("flows", older_than_seconds=100)), 0)
    sessions.clock.advance(200)
    expect("pruned", sum(q.run(verbs.prune("flows", older_than_seconds=100, max_rows=2)) for _ in range(6)), 6)
    for table in ("flows", "calls", "edges", "signals", "sweeps", "open_jobs", "ledger"):
        expect(f"rows of {table}", q.value(f"select count(*) from faultline.{table}"), 0)


@probe("prune", "is_live", "why_not_retried", "prune_flows")
def a_flow_with_an_open_job_is_kept_and_one_that_goes_is_not_retried(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    parent, children = suspended_parent(q, 3)
    sessions.hand.execute(
        "update faultline.open_jobs set state = 'failed', finished_at = (select at from story.time), suspended = null"
        " where id = %s",
        parent,
    )
    q.complete(*children[:2])
    sessions.clock.advance(1000)
    expect("pruned with an open child", q.run(verbs.prune("flows", older_than_seconds=100)), 0)
    q.complete(children[2])
    sessions.clock.advance(1000)
    expect("pruned at first", q.run(verbs.prune("flows", older_than_seconds=100, max_rows=1)), 1)
    with refused(q, "FL002", "is being deleted"):
        q.run(verbs.retry(parent))
    expect("pruned then", sum(q.run(verbs.prune("flows", older_than_seconds=100)) for _ in range(2)), 3)


@probe("prune", "prune_flows")
def a_flow_that_failed_is_kept_at_least_as_long_as_failed_jobs(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    for name, seconds in (("keep_flows_seconds", 100), ("keep_failed_seconds", 1000)):
        q.run(verbs.change_setting(name, seconds))
    lease = q.new_lease()
    spawn(q, lease, 1)
    q.fail(lease, then="fail")
    sweep_all(q)
    sessions.clock.advance(500)
    expect("pruned too early", q.run(verbs.prune("flows")), 0)
    sessions.clock.advance(600)
    expect("pruned", q.run(verbs.prune("flows")), 2)


@probe("prune", "forget_steps")
def a_job_that_received_nothing_takes_its_signals_with_it(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    q.run(verbs.signal(lease.job_id, "answer", 1))
    q.complete(lease)
    q.run(verbs.prune("ledger", older_than_seconds=0))
    q.run(verbs.prune("flows", older_than_seconds=0))
    expect("signals", q.value("select count(*) from faultline.signals"), 0)


@probe("reconcile", "wake_overdue_suspended")
def a_job_that_nobody_nudged_is_found_by_reconcile(sessions: Sessions) -> None:
    q = sessions.open()
    resolver = Resolver(q)
    parent, (child,) = suspended_parent(q)
    lease = q.new_lease()
    suspend(q, lease, ANSWER)
    q.complete(child)
    q.run(verbs.signal(lease.job_id, "answer", 1))
    sessions.hand.execute("delete from faultline.nudges")
    expect("broken", set(q.broken_invariants()), {"a_waiting_job_waits_for_something"})
    q.run(verbs.reconcile())
    expect("woken", resolver.woken(), 2)
    expect("both go on", {found.job_id for found in q.claim()}, {parent, lease.job_id})


@probe("reconcile", "cancel_deadlocked_jobs", "cancel_waiting")
def jobs_that_wait_for_each_other_are_found_by_reconcile(sessions: Sessions) -> None:
    q = sessions.open()
    one, two, three = (q.new_lease() for _ in range(3))
    watching = {"number": "1", "kind": "watch", "name": "other"}
    for lease, target in ((one, two), (two, three), (three, two)):
        call_id = q.value(
            "insert into faultline.calls (job_id, number, kind, name, fencing_token, begun_at, policy)"
            " values (%s, '1', 'watch', 'other', 1, faultline.clock(), 'raise') returning id",
            lease.job_id,
        )
        q.execute("insert into faultline.edges (call_id, index, job_id) values (%s, 0, %s)", call_id, target.job_id)
        sessions.hand.execute("update faultline.open_jobs set watched = true where id = %s", target.job_id)
    for lease in (one, two, three):
        suspend(q, lease, watching)
    q.run(verbs.reconcile())
    found = [q.state(lease.job_id).value for lease in (one, two, three)]
    expect("states", found, ["queued", "queued", "cancelled"])
    expect("why", q.journal(three.job_id)[-1].detail["reason"], "deadlock")
    expect("the other one goes on", Resolver(q).woken(), 1)
    expect_woken(q, two.job_id)


@probe("reconcile", "nudge_waiters")
def what_reconcile_closes_is_told_to_those_who_wait_for_it(sessions: Sessions) -> None:
    q = sessions.open()
    parent, (child,) = suspended_parent(q)
    kept = q.execute("select * from faultline.open_jobs where id = %s", child.job_id)
    sessions.hand.execute("create table story.kept as select * from faultline.open_jobs where id = %s", child.job_id)
    q.complete(child)
    sessions.hand.execute("insert into faultline.open_jobs select * from story.kept; drop table story.kept")
    resolver = Resolver(q)
    expect("woken before, since the row is back", (len(kept), resolver.woken()), (1, 0))
    expect("closed", q.run(verbs.reconcile()), [child.job_id])
    expect("woken", resolver.woken(), 1)
    expect_woken(q, parent)


@probe("recover")
def a_waiting_job_goes_on_waiting_after_recover(sessions: Sessions) -> None:
    q = sessions.open()
    parent, (child,) = suspended_parent(q)
    floor, _, requeued = q.run(verbs.recover())
    expect("requeued", requeued, 1)
    expect("waiting", is_waiting(q, parent), True)
    q.complete(q.claim_one(queue="children"))
    expect("stale", len(q.complete(child).stale), 1)
    expect("woken", Resolver(q).woken(), 1)
    expect("its token", expect_woken(q, parent).fencing_token > floor, True)


@probe("recover", "advance_sequences")
def recover_repairs_the_numbers_of_copied_tables(sessions: Sessions) -> None:
    q = sessions.open()
    parent, _ = suspended_parent(q)
    copied = {"nudges": "job_id, kind", "signals": "job_id, name, sent_at"}
    for table, columns in copied.items():
        given = columns.replace("kind", "0").replace("name", "'n'").replace("sent_at", "clock_timestamp()")
        q.execute(
            f"insert into faultline.{table} (id, {columns}) overriding system value select 1000000, {given}"
            " from (select %s::uuid as job_id) p",
            parent,
        )
    q.run(verbs.recover())
    for table in copied:
        expect(f"next of {table}", q.value(f"select nextval(pg_get_serial_sequence('faultline.{table}', 'id'))"), 1000001)


_REWRITES = (
    "update faultline.calls set result = '1' where outcome is not null",
    "delete from faultline.calls",
    "update faultline.edges set index = 9",
    "delete from faultline.edges",
    "update faultline.signals set payload = '2'",
    "delete from faultline.signals",
    "delete from faultline.flows",
    "update faultline.flows set begun_at = now()",
    "delete from faultline.nudges",
    "delete from faultline.sweeps",
    "truncate faultline.calls",
    "truncate faultline.nudges",
)


@probe("calls", "edges", "signals", "flows", "nudges", "sweeps")
def nobody_rewrites_the_history_of_a_flow(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    spawn(q, lease, 1)
    q.fail(q.claim_one(queue="children"), then="fail")
    q.run(verbs.collect_outcomes(lease, "1"))
    q.run(verbs.signal(lease.job_id, "answer", 1))
    for statement in _REWRITES:
        with refused(q, "FL002", what=statement):
            q.execute(statement)
