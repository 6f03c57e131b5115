"""Those who wait under limits come again as soon as they may: what was raised, who left, and whose turn it is."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from faultline.store import verbs as upkeep
from faultline.store.verbs import budget as verbs
from faultline.store.verbs import flow
from faultline.store.verbs import limit as limits
from faultline_proof.probes.limit_stage import done, failed, limit, put, take
from faultline_proof.probes.probe import expect, probe

if TYPE_CHECKING:
    from faultline.core.model import Lease
    from faultline_proof.sessions import Session, Sessions

_LONG: dict[str, Any] = {"lease_seconds": 3600}


def _set(q: Session, rate: float, name: str = "b") -> None:
    q.run(verbs.set_budget(name, {"rate": rate, "burst": 100}))


def _told(q: Session) -> tuple[Lease, float]:
    """A running job that was told to wait for as long."""
    _set(q, 0.01)
    q.run(verbs.take_budget(q.new_lease(**_LONG), "b", 100, 1))
    lease = q.new_lease(**_LONG)
    asked = q.run(verbs.take_budget(lease, "b", 50, 1))
    expect("asked", asked.status, "wait")
    return lease, asked.seconds or 0.0


@probe("budget_raised_since_asked", "release", "write_budget", "reserve_budget_slot")
def who_was_told_to_wait_before_a_budget_was_raised_asks_again_at_once(sessions: Sessions) -> None:
    q, clock = sessions.open(), sessions.clock
    clock.take()
    lease, seconds = _told(q)
    clock.advance(1)
    _set(q, 10)
    q.release(lease, delays=[seconds])
    again = q.claim_one()
    expect("claimed again", again.job_id, lease.job_id)
    clock.advance(1)
    expect("asks once more", q.run(verbs.take_budget(again, "b", 90, 1)).status, "wait")
    q.release(again, delays=[50.0])
    expect("by the new rate, it waits", q.claim(), [])
    clock.advance(51)
    later = q.claim_one()
    _set(q, 20)
    q.release(later, delays=[60.0])
    expect("a run that did not ask sleeps for as long as it says", q.claim(), [])


@probe("budget_raised_since_asked", "write_budget")
def a_budget_that_was_lowered_or_is_another_one_calls_nobody(sessions: Sessions) -> None:
    q, clock = sessions.open(), sessions.clock
    clock.take()
    _set(q, 1, "another")
    lease, seconds = _told(q)
    clock.advance(1)
    _set(q, 0.005)
    _set(q, 10, "another")
    q.release(lease, delays=[seconds])
    expect("it waits", q.claim(), [])


@probe("budget_raised_since_asked", "suspend")
def a_program_that_was_told_to_wait_before_a_budget_was_raised_asks_again_at_once(sessions: Sessions) -> None:
    q, clock = sessions.open(), sessions.clock
    clock.take()
    lease, seconds = _told(q)
    clock.advance(1)
    _set(q, 10)
    moment = q.value("select (faultline.clock() + make_interval(secs => %s))::text", seconds)
    wait = {"number": "0.0.0", "kind": "retry", "name": "b", "until": moment}
    expect("refused", q.run(flow.suspend([lease], [json.dumps([wait])])).stale, [])
    expect("claimed again", q.claim_one().job_id, lease.job_id)


@probe("budget_raised_since_asked", "release")
def who_gives_its_lease_back_while_a_budget_is_raised_waits_for_that(sessions: Sessions) -> None:
    q, operator, clock = sessions.open(), sessions.open(), sessions.clock
    clock.take()
    lease, seconds = _told(q)
    clock.advance(1)
    operator.begin()
    _set(operator, 10)
    answer = q.start(lambda s: s.release(lease, delays=[seconds]))
    sessions.wait_until_blocked(q, answer)
    operator.commit()
    answer.result()
    expect("claimed again", q.claim_one().job_id, lease.job_id)


@probe("wake_budget_waiters", "reconcile")
def who_is_locked_while_a_budget_is_raised_is_called_later(sessions: Sessions) -> None:
    q, other, third, clock = sessions.open(), sessions.open(), sessions.open(), sessions.clock
    clock.take()
    held, seconds = _told(q)
    late, free = (q.new_lease(**_LONG) for _ in range(2))
    for lease in (late, free):
        q.run(verbs.take_budget(lease, "b", 20, 1))
    q.release(held, late, free, delays=[seconds, 5.0, seconds])
    clock.advance(1)
    other.begin()
    other.execute("select from faultline.open_jobs where id = any (%s) for update", [held.job_id, late.job_id])
    sessions.at_once(q, lambda s: _set(s, 10))
    expect("the other one", q.claim_one().job_id, free.job_id)
    noted = "select array(select unnest(asleep) order by 1) from faultline.budgets"
    expect("noted", q.value(noted), sorted((held.job_id, late.job_id)))
    sessions.at_once(q, lambda s: s.run(upkeep.reconcile()))
    expect("still locked", (q.claim(), len(q.value(noted))), ([], 2))
    other.rollback()
    clock.advance(5)
    again = q.claim_one()
    expect("in its time", again.job_id, late.job_id)
    expect("by the new rate", q.run(verbs.take_budget(again, "b", 99, 1)).status, "wait")
    q.release(again, delays=[50.0])
    third.begin()
    third.execute("select from faultline.budgets for share")
    sessions.at_once(q, lambda s: s.run(upkeep.reconcile()))
    expect("waits for nobody who takes", q.claim(), [])
    third.rollback()
    third.execute("listen faultline")
    q.run(upkeep.reconcile())
    expect("a worker is woken", bool(third.notices()), wanted=True)
    called = q.claim()
    expect("who was told before, and not who was told after", [one.job_id for one in called], [held.job_id])
    waits = q.value("select takes -> 'waits' from faultline.open_jobs where id = %s", held.job_id)
    expect("it waits for nothing, and nobody is noted", (waits, q.value("select asleep from faultline.budgets")), ({}, None))


# Orphaned budgets


def _works(q: Session, budgets: list[str] | None, worker: str = "w") -> None:
    """A worker that is alive, and has said which budgets its code has."""
    q.heartbeat(worker)
    q.value("select faultline.announce(%s, '{}', 1, '{}', %s)", worker, budgets)


@probe("orphaned_budget", "set_budget", "announce")
def a_reset_removes_a_budget_that_no_living_worker_has_in_its_code(sessions: Sessions) -> None:
    q, clock = sessions.open(), sessions.clock
    clock.take()

    def reset() -> bool:
        return q.run(verbs.set_budget("b", None))

    q.run(verbs.declare_budget("b", {"rate": 3}))
    expect("without any worker, its code may have it", reset(), False)
    _works(q, None)
    expect("a worker that does not say may have it", reset(), False)
    _works(q, ["another", "b"])
    _works(q, ["another"], "second")
    expect("a worker has it", reset(), False)
    clock.advance(16)
    _works(q, ["another"], "second")
    q.run(verbs.set_budget("b", {"rate": 4}))
    expect("what was set is taken back first", reset(), True)
    expect("the code's", q.value("select effective ->> 'rate' from faultline.budgets"), "3")
    expect("and then it is gone", (reset(), q.value("select count(*) from faultline.budgets")), (True, 0))
    said = "select detail -> 'is', detail -> 'by_code' from faultline.journal order by id desc limit 1"
    expect("by a person", q.execute(said), [({}, False)])


# Ordered groups


@probe("pick_permit_holders", "recheck_groups")
def a_raised_rate_calls_a_retry_that_keeps_its_groups_permit(sessions: Sessions) -> None:
    q, clock = sessions.open(), sessions.clock
    clock.take()
    limit(q, "*", ordered=True, rate=1, per=3600, burst=1)
    for group in ("a", "b", "c"):
        put(q, group)
    first, second, third = take(q)
    failed(q, first, third)
    failed(q, second, delay=60)
    expect("no token is left", take(q), [])
    clock.advance(10)
    limit(q, first.group or "", rate=1000, per=1, burst=1)
    off = "select next_run_at > faultline.clock() from faultline.open_jobs where id = %s"
    expect("another group's stays put off", q.value(off, third.job_id), True)
    again = take(q)
    expect("at once, and nobody else", [one.job_id for one in again], [first.job_id])
    done(q, *again)
    clock.advance(51)
    expect("put off until there is a token", take(q), [])
    limit(q, "*", rate=1000, per=1, burst=1)
    called = sorted(one.job_id for one in take(q))
    expect("called by the rate of each group", called, sorted((second.job_id, third.job_id)))


@probe("recheck_groups")
def a_raised_rate_does_not_shorten_the_delay_of_a_retry(sessions: Sessions) -> None:
    q, clock = sessions.open(), sessions.clock
    clock.take()
    limit(q, "*", ordered=True, rate=1, per=3600, burst=1)
    put(q, "a")
    [held] = take(q)
    failed(q, held, delay=60)
    take(q)
    limit(q, "*", rate=1000, per=1, burst=1)
    expect("too early", take(q), [])
    clock.advance(61)
    expect("in its time", [one.job_id for one in take(q)], [held.job_id])


@probe("guards.sql", "leave_group")
def a_retry_that_was_put_off_and_is_cancelled_has_its_true_time(sessions: Sessions) -> None:
    q, clock = sessions.open(), sessions.clock
    clock.take()
    limit(q, "*", ordered=True, rate=1, per=3600, burst=1)
    put(q, "a")
    [held] = take(q)
    failed(q, held)
    due = q.value("select next_run_at from faultline.open_jobs")
    take(q)
    expect("put off", q.value("select next_run_at > %s from faultline.open_jobs", due), True)
    q.value("select faultline.cancel(%s)::text", held.job_id)
    expect("its time", q.execute("select next_run_at, group_at from faultline.open_jobs"), [(due, None)])


# Turns between workers


@probe("yield_to_waiting_worker", "wake_one")
def a_turn_is_offered_to_another_worker_that_sleeps(sessions: Sessions) -> None:
    q, ear = sessions.open(), sessions.open()
    limit(q, concurrency=1)
    put(q, times=3)
    for worker in ("w", "sleeper"):
        q.heartbeat(worker, sleeping=["default"])
    q.heartbeat("elsewhere", sleeping=["another"])
    ear.execute("listen faultline")

    def offer(worker: str = "w") -> tuple[bool, list[Any]]:
        offered = q.run(limits.yield_to_waiting_worker("default", worker))
        return offered, [json.loads(note)["workers"] for note in ear.notices()]

    expect("permits are left", offer(), (False, []))
    take(q)
    ear.notices()
    expect("the other one is woken", offer(), (True, [["sleeper"]]))
    q.value("select faultline.unregister_worker('sleeper')::text")
    expect("nobody else sleeps", offer(), (False, []))
    expect("of another queue", q.run(limits.yield_to_waiting_worker("another", "w")), False)
