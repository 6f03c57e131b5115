"""A job that waits is woken when what it waits for has happened, in whatever order the sessions commit."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from faultline.store import verbs
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
    from faultline_proof.sessions import Sessions


@probe("suspend", "resolve", "complete", "nudge_waiters", "can_resume", "open_child", "claim", "apply_nudges", "read_nudges")
def a_waiting_job_holds_no_lease_and_goes_on_when_its_children_have_ended(sessions: Sessions) -> None:
    q = sessions.open()
    resolver = Resolver(q)
    lease = q.new_lease()
    spawn(q, lease, 3)
    expect("refused", suspend(q, lease).stale, [])
    expect("what it holds", q.job(lease.job_id).owner, None)
    expect("claimed while it waits", q.claim(), [])
    expect("renewed by the last owner", reasons(q.renew(lease)), ["lease_lost"])
    children = q.claim(queue="children")
    for child in children[:2]:
        q.complete(child)
        expect("woken too early", resolver.woken(), 0)
    q.complete(children[2])
    expect("woken", resolver.woken(), 1)
    again = expect_woken(q, lease.job_id)
    expect("token", again.fencing_token, lease.fencing_token + 1)
    expect("nudges left", q.value("select count(*) from faultline.nudges"), 0)
    expect("invariants", q.broken_invariants(), [])


@probe("suspend", "can_resume")
def what_ended_before_the_wait_is_seen_by_it(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    spawn(q, lease, 1)
    q.complete(q.claim_one(queue="children"))
    suspend(q, lease)
    expect("waiting", is_waiting(q, lease.job_id), False)
    expect_woken(q, lease.job_id)


@probe("suspend", "resolve", "complete", "nudge_waiters")
def an_end_that_commits_after_the_look_of_the_wait_wakes_it(sessions: Sessions) -> None:
    q, child, other = sessions.open(), sessions.open(), sessions.open()
    resolver = Resolver(other)
    lease = q.new_lease()
    spawn(q, lease, 1)
    held = child.claim_one(queue="children")
    child.begin()
    child.complete(held)
    suspend(q, lease)
    expect("woken before the commit", resolver.woken(), 0)
    child.commit()
    expect("woken", resolver.woken(), 1)
    expect_woken(q, lease.job_id)


@probe("suspend", "resolve")
def an_end_that_commits_between_look_and_commit_of_the_wait_wakes_it(sessions: Sessions) -> None:
    q, child, other = sessions.open(), sessions.open(), sessions.open()
    sessions.clock.take()
    resolver = Resolver(other)
    lease = q.new_lease()
    spawn(q, lease, 1)
    held = child.claim_one(queue="children")
    q.begin()
    suspend(q, lease)
    child.complete(held)
    expect("woken while the row is held", sessions.at_once(other, lambda _: resolver.woken()), 0)
    expect("nudges", child.value("select count(*) from faultline.nudges"), 1)
    q.commit()
    sessions.clock.advance(1)
    expect("woken", resolver.woken(), 1)
    expect_woken(q, lease.job_id)


@probe("resolve", "nudge_waiters", "can_resume", "open_child")
def of_two_last_children_that_end_at_once_the_later_commit_wakes_the_parent(sessions: Sessions) -> None:
    for resolve_between in (False, True):
        q, one, two = sessions.open(), sessions.open(), sessions.open()
        resolver = Resolver(q)
        parent, (first, second) = suspended_parent(q, 2)
        one.begin()
        one.complete(first)
        two.begin()
        two.complete(second)
        two.commit()
        if resolve_between:
            expect("woken by the first commit", resolver.woken(), 0)
        one.commit()
        expect("woken", resolver.woken(), 1)
        expect_woken(q, parent)


@probe("resolve", "read_nudges")
def a_nudge_that_commits_late_is_found_by_those_who_have_looked_past_it(sessions: Sessions) -> None:
    q, late = sessions.open(), sessions.open()
    resolver = Resolver(q)
    slow, (slow_child,) = suspended_parent(q)
    quick, (quick_child,) = suspended_parent(q)
    late.begin()
    late.complete(slow_child)
    q.complete(quick_child)
    expect("woken first", resolver.woken(), 1)
    expect_woken(q, quick)
    for _ in range(3):
        expect("woken before the commit", resolver.woken(), 0)
    late.commit()
    expect("woken late", resolver.woken(), 1)
    expect_woken(q, slow)


@probe("resolve", "apply_nudges")
def the_nudge_of_a_resolver_that_died_is_looked_at_by_another(sessions: Sessions) -> None:
    q, dying = sessions.open(), sessions.open()
    resolver = Resolver(q)
    parent, (child,) = suspended_parent(q)
    q.complete(child)
    dying.begin()
    expect("woken by the one that dies", Resolver(dying).woken(), 1)
    expect("woken beside it", resolver.woken(), 0)
    sessions.end(dying)
    expect("woken after it", resolver.woken(), 1)
    expect_woken(q, parent)


@probe("resolve", "apply_nudges", "pause_nudges")
def a_row_that_is_held_delays_its_own_job_only(sessions: Sessions) -> None:
    q, holder, other = sessions.open(), sessions.open(), sessions.open()
    sessions.clock.take()
    resolver = Resolver(other)
    held, children = suspended_parent(q, 3)
    free, (free_child,) = suspended_parent(q)
    holder.begin()
    holder.execute("select from faultline.open_jobs where id = %s for update", held)
    for child in (*children, free_child):
        q.complete(child)
    expect("woken beside the held one", sessions.at_once(other, lambda _: resolver.woken()), 1)
    expect("nudges of the held one", q.value("select count(*) from faultline.nudges"), 1)
    expect_woken(q, free)
    for _ in range(3):
        expect("woken while it is held", resolver.woken(), 0)
    expect("looks, with a pause between them", q.value("select looks from faultline.nudges"), 1)
    holder.commit()
    sessions.clock.advance(1)
    expect("woken when it is free", resolver.woken(), 1)
    expect_woken(q, held)


@probe("resolve", "pause_nudges")
def the_pause_of_a_held_row_doubles_up_to_five_seconds(sessions: Sessions) -> None:
    q, holder = sessions.open(), sessions.open()
    sessions.clock.take()
    resolver = Resolver(q)
    parent, (child,) = suspended_parent(q)
    holder.begin()
    holder.execute("select from faultline.open_jobs where id = %s for update", parent)
    q.complete(child)
    pauses = []
    for _ in range(10):
        resolver.woken()
        paused = "select extract(epoch from not_before - (select at from story.time))::float8 from faultline.nudges"
        pauses.append(q.value(paused))
        sessions.clock.advance(pauses[-1])
    expect("pauses", [round(pause, 2) for pause in pauses], [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5, 5])


@probe("resolve", "read_nudges")
def a_resolve_looks_at_no_more_than_it_was_asked_to(sessions: Sessions) -> None:
    q = sessions.open()
    resolver = Resolver(q)
    parents = [suspended_parent(q) for _ in range(5)]
    for _, children in parents:
        q.complete(*children)
    woken: list[int] = []
    asked = 0
    while sum(woken) < len(parents):
        woken.append(resolver.woken(2))
        asked += 1
        expect("there are more, and it says so", resolver.left_over > 0 or sum(woken) == len(parents), True)
        expect("asked often enough", asked <= len(parents), True)
    expect("the most at once", max(woken), 2)
    q.claim()
    # All in one transaction, which has one number.
    more = [suspended_parent(q) for _ in range(5)]
    q.complete(*(child for _, children in more for child in children))
    expect("woken of one transaction", sum(resolver.woken(2) for _ in range(6)), 5)


@probe("resolve", "read_nudges")
def a_cursor_of_another_run_of_the_server_hides_nothing(sessions: Sessions) -> None:
    q = sessions.open()
    parent, (child,) = suspended_parent(q)
    q.complete(child)
    resolver = Resolver(q)
    resolver.cursor = json.dumps({"run": "another", "xmax": "1", "open": [], "kept": []})
    ahead = q.value(
        "select jsonb_build_object('run', faultline.server_run(), 'xmax', '99999999999', 'open', '[]'::jsonb,"
        " 'kept', '[]'::jsonb)::text"
    )
    with q.unsaved():
        expect("woken with the cursor of another run", resolver.woken(), 1)
    resolver.cursor = ahead
    expect("woken with a cursor that is ahead", resolver.woken(), 1)
    expect_woken(q, parent)


@probe("resolve", "apply_nudges")
def the_nudge_of_a_running_job_is_dropped_after_its_row_was_had(sessions: Sessions) -> None:
    q, holder = sessions.open(), sessions.open()
    sessions.clock.take()
    resolver = Resolver(q)
    lease = q.new_lease()
    spawn(q, lease, 2)
    first, second = q.claim(queue="children")
    holder.begin()
    holder.fence(lease)
    q.complete(first)
    resolver.woken()
    expect("nudges while its transaction runs", q.value("select count(*) from faultline.nudges"), 1)
    holder.commit()
    sessions.clock.advance(1)
    resolver.woken()
    expect("nudges after it", q.value("select count(*) from faultline.nudges"), 0)
    suspend(q, lease)
    q.complete(second)
    expect("woken", resolver.woken(), 1)


@probe("suspend", "claim", "keep_waits")
def a_wait_ends_when_its_time_is_up(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    lease = q.new_lease()
    suspend(q, lease, {**ANSWER, "seconds": 60})
    sessions.clock.advance(59)
    expect("claimed before", q.claim(), [])
    sessions.clock.advance(2)
    again = expect_woken(q, lease.job_id)
    expect("suspended while it runs", q.value("select suspended from faultline.jobs where id = %s", lease.job_id), None)
    # The time was set when the program first came to the wait.
    suspend(q, again, {**ANSWER, "seconds": 60})
    expect_woken(q, lease.job_id)


@probe("suspend", "signal", "kept_signal", "can_resume")
def a_signal_wakes_whoever_waits_for_it(sessions: Sessions) -> None:
    q = sessions.open()
    resolver = Resolver(q)
    lease = q.new_lease()
    q.run(verbs.signal(lease.job_id, "answer", 1))
    suspend(q, lease, {**ANSWER, "number": "2", "fresh": True})
    expect("woken by what was sent before a fresh wait", is_waiting(q, lease.job_id), True)
    q.run(verbs.signal(lease.job_id, "other", 1))
    expect("woken by another name", resolver.woken(), 0)
    q.run(verbs.signal(lease.job_id, "answer", 2))
    expect("woken", resolver.woken(), 1)
    again = expect_woken(q, lease.job_id)
    suspend(q, again, {**ANSWER, "number": "3"})
    expect_woken(q, lease.job_id)


@probe("can_resume", "suspend")
def what_is_waited_for_together_is_over_when_all_of_it_is(sessions: Sessions) -> None:
    q = sessions.open()
    resolver = Resolver(q)
    for together in (True, False):
        lease = q.new_lease()
        for number in ("1", "2"):
            spawn(q, lease, 1, number)
        suspend(q, lease, *({**CHILDREN, "number": number, "together": together} for number in ("1", "2")))
        first, second = q.claim(queue="children")
        q.complete(first)
        expect(f"woken by the first, together: {together}", resolver.woken(), 0 if together else 1)
        q.complete(second)
        expect("woken by the second", resolver.woken(), 1 if together else 0)
        expect_woken(q, lease.job_id)


@probe("can_resume", "has_failed", "fail")
def a_failed_child_wakes_only_a_parent_that_does_not_want_to_wait_for_the_others(sessions: Sessions) -> None:
    q = sessions.open()
    resolver = Resolver(q)
    for policy, woken in (("fast", 1), ("raise", 0), ("keep", 0)):
        parent, (first, second) = suspended_parent(q, 2, policy=policy)
        q.fail(first, then="retry", delay=0)
        expect(f"woken by an attempt that failed, {policy}", resolver.woken(), 0)
        q.fail(q.claim_one(queue="children"), then="fail")
        expect(f"woken by a child that failed, {policy}", resolver.woken(), woken)
        q.complete(second)
        expect(f"woken by the end of all, {policy}", resolver.woken(), 1 - woken)
        expect_woken(q, parent)


@probe("can_resume", "retry")
def a_child_that_was_retried_is_waited_for_again(sessions: Sessions) -> None:
    q = sessions.open()
    resolver = Resolver(q)
    parent, children = suspended_parent(q, 3)
    q.fail(children[2], then="fail")
    expect("woken with two open", resolver.woken(), 0)
    q.run(verbs.retry(children[2].job_id))
    q.complete(*children[:2])
    expect("woken while the retried one is open", resolver.woken(), 0)
    q.complete(q.claim_one(queue="children"))
    expect("woken", resolver.woken(), 1)
    expect_woken(q, parent)


@probe("suspend")
def a_new_wait_counts_the_attempts_from_zero_and_a_known_one_does_not(sessions: Sessions) -> None:
    q = sessions.open()
    q.enqueue(max_attempts=5)
    for _ in range(2):
        q.fail(q.claim_one(), delay=0)
    lease = q.claim_one()
    sessions.hand.execute("update faultline.open_jobs set reaps = 2 where id = %s", lease.job_id)
    counts = "select attempt, reaps from faultline.jobs where id = %s"
    suspend(q, lease, {**ANSWER, "seconds": 0})
    expect("attempts and reaps after a new wait", q.execute(counts, lease.job_id), [(0, 0)])
    q.fail(q.claim_one(), delay=0)
    again = q.claim_one()
    sessions.hand.execute("update faultline.open_jobs set reaps = 2 where id = %s", lease.job_id)
    suspend(q, again, {**ANSWER, "seconds": 0})
    expect("attempts and reaps after a known wait", q.execute(counts, lease.job_id), [(1, 2)])


@probe("suspend", "refuse")
def a_lease_that_is_lost_suspends_nothing(sessions: Sessions) -> None:
    q, holder = sessions.open(), sessions.open()
    lost = q.new_lease()
    q.release(lost)
    lease = q.claim_one()
    expect("refused", reasons(suspend(q, lost, ANSWER)), ["token_mismatch"])
    expect("calls", q.value("select count(*) from faultline.calls"), 0)
    holder.begin()
    holder.fence(lease)
    expect("busy", sessions.at_once(q, lambda _: suspend(q, lease, ANSWER)).busy, [lease])
    holder.commit()
    expect("then it waits", suspend(q, lease, ANSWER).busy, [])
    expect("waiting", is_waiting(q, lease.job_id), True)


@probe("read_committed", "suspend", "resolve", "sweep")
def a_look_with_an_old_view_is_refused(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    for isolation in ("repeatable read", "serializable"):
        q.begin(isolation)
        with refused(q, "FL005", "READ COMMITTED", what=f"suspend in {isolation}"):
            suspend(q, lease, ANSWER)
        with refused(q, "FL005", "READ COMMITTED", what=f"resolve in {isolation}"):
            q.execute("select * from faultline.resolve()")
        with refused(q, "FL005", "READ COMMITTED", what=f"sweep in {isolation}"):
            q.execute("select faultline.sweep()")
        q.rollback()
