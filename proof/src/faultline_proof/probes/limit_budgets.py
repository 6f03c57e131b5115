"""What running jobs take from budgets: never more than there is, once, and in which order."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from faultline.core.errors import StaleLease
from faultline.store.verbs import budget as verbs
from faultline.store.verbs import flow, operate
from faultline_proof.probes.probe import expect, probe, refused
from faultline_proof.probes.writes import LOSSES

if TYPE_CHECKING:
    from collections.abc import Callable

    from faultline.core.model import Lease
    from faultline.store.verbs.budget import Take
    from faultline_proof.sessions import Session, Sessions

_LONG: dict[str, Any] = {"lease_seconds": 3600}
#: More urgent than those who wait: a claim of one finds this one.
_FRESH: dict[str, Any] = {"lease_seconds": 3600, "priority": -200}


def _budget(q: Session, *, rate: float = 10, burst: float = 100) -> bool:
    return q.run(verbs.set_budget("b", {"rate": rate, "burst": burst}))


def _ask(q: Session, lease: Lease, cost: float, number: int = 1) -> Take:
    return q.run(verbs.take_budget(lease, "b", cost, number))


def _in(q: Session) -> float:
    """What was in it when it was last looked at."""
    found: float = q.value("select round(tokens::numeric, 3)::float8 from faultline.budgets")
    return found


def _waits(q: Session, lease: Lease, cost: float, number: int = 1) -> float:
    """The job asks, and gives its lease back. In how many seconds it is to come again."""
    asked = _ask(q, lease, cost, number)
    expect("asked", asked.status, "wait")
    seconds = asked.seconds or 0.0
    q.release(lease, delays=[seconds])
    return round(seconds, 1)


def _again(q: Session, lease: Lease) -> Lease:
    """The job that has waited, claimed again."""
    found = [one for one in q.claim() if one.job_id == lease.job_id]
    expect("claimed again", len(found), 1)
    return found[0]


@probe("take_budget", "reserve_budget_slot", "refilled")
def no_more_is_taken_from_a_budget_than_there_is(sessions: Sessions) -> None:
    q, clock = sessions.open(), sessions.clock
    clock.take()
    _budget(q)
    first, second = q.new_lease(**_LONG), q.new_lease(**_LONG)
    expect("the first", _ask(q, first, 60).status, "taken")
    expect("comes again in", _waits(q, second, 60), 2.0)
    expect("in it", _in(q), 40)
    clock.advance(2.01)
    expect("the second", _ask(q, _again(q, second), 60).status, "taken")
    for there in (10.1, 20.1, 30.1):
        clock.advance(1)
        expect("too much", _ask(q, first, 40, 2).status, "wait")
        expect("in it", _in(q), there)
    clock.advance(3600)
    expect("no more than the burst", _ask(q, first, 100, 2).status, "taken")
    expect("in it", _in(q), 0)


@probe("reserve_budget_slot")
def nobody_comes_again_at_once(sessions: Sessions) -> None:
    q, clock = sessions.open(), sessions.clock
    clock.take()
    _budget(q, rate=1_000_000, burst=1_000_000)
    expect("first", _ask(q, q.new_lease(**_LONG), 1_000_000).status, "taken")
    expect("comes again in", _waits(q, q.new_lease(**_LONG), 5), 0.1)


@probe("take_budget")
def a_take_that_is_sent_again_is_paid_once(sessions: Sessions) -> None:
    q, clock = sessions.open(), sessions.clock
    clock.take()
    _budget(q)
    lease = q.new_lease(**_LONG)
    for _ in range(3):
        expect("asked", _ask(q, lease, 20).status, "taken")
    expect("in it", _in(q), 80)
    expect("the next one", _ask(q, lease, 20, 2).status, "taken")
    expect("in it", _in(q), 60)
    q.release(lease)
    expect("a later run", _ask(q, _again(q, lease), 20, 2).status, "taken")
    expect("in it", _in(q), 40)


@probe("take_budget", "lock_lease")
def who_has_lost_the_lease_takes_nothing(sessions: Sessions) -> None:
    q = sessions.open()
    _budget(q)
    for lose, reason in LOSSES.items():
        lease = q.new_lease()
        lose(q, lease)
        try:
            asked: object = _ask(q, lease, 50)
        except StaleLease as error:
            asked = error.reason
        expect("asked", asked, reason)
        expect("on record", q.refusals(lease.job_id)[-1:], [("take_budget", reason)])
    expect("taken from", q.value("select tokens from faultline.budgets"), None)


@probe("take_budget")
def two_that_take_at_once_do_not_take_the_same(sessions: Sessions) -> None:
    q, one, other = sessions.open(), sessions.open(), sessions.open()
    _budget(q, rate=0.001)
    first, second, third = (q.new_lease(**_LONG) for _ in range(3))
    one.begin()
    expect("the first", _ask(one, first, 60).status, "taken")
    answer = other.start(lambda s: _ask(s, second, 60))
    sessions.wait_until_blocked(other, answer)
    one.commit()
    expect("the second", answer.result().status, "wait")
    one.begin()
    expect("the third", _ask(one, third, 30).status, "wait")
    one.rollback()
    expect("in it, give or take a moment", round(_in(q)), 40)


@probe("take_budget", "reserve_budget_slot")
def small_costs_do_not_starve_a_large_one(sessions: Sessions) -> None:
    """A cost of all that there can be, beside others that come all the time and want more than there is."""
    q, clock = sessions.open(), sessions.clock
    clock.take()
    _budget(q)
    expect("first", _ask(q, q.new_lease(**_LONG), 100).status, "taken")
    large = q.new_lease(**_LONG)
    expect("the large one comes in", _waits(q, large, 100), 10.0)
    for _ in range(42):
        clock.advance(0.25)
        expect("a small one", _ask(q, q.new_lease(**_FRESH), 3).status, "wait")
    expect("the large one, half a second late", _ask(q, _again(q, large), 100).status, "taken")


@probe("take_budget", "reserve_budget_slot")
def who_has_just_come_stands_behind_who_waits(sessions: Sessions) -> None:
    q, clock = sessions.open(), sessions.clock
    clock.take()
    _budget(q)
    expect("first", _ask(q, q.new_lease(**_LONG), 100).status, "taken")
    one, two, three = (q.new_lease(**_LONG) for _ in range(3))
    expect("the waits", [_waits(q, job, 20) for job in (one, two, three)], [2.0, 4.0, 6.0])
    clock.advance(1.5)
    expect("a small one that comes later", round(_ask(q, q.new_lease(**_LONG), 5).seconds or 0, 1), 5.0)
    for job in (one, two, three):
        clock.advance(1.005)
        expect("a small one", _ask(q, q.new_lease(**_FRESH), 2).status, "wait")
        clock.advance(1.005)
        expect("one that has waited", _ask(q, _again(q, job), 20).status, "taken")


@probe("take_budget")
def what_the_bucket_cannot_hold_is_not_lost_while_others_are_late(sessions: Sessions) -> None:
    q, clock = sessions.open(), sessions.clock
    clock.take()
    _budget(q)
    expect("first", _ask(q, q.new_lease(**_LONG), 100).status, "taken")
    for _ in range(30):
        _waits(q, q.new_lease(**_LONG), 20)
    clock.advance(25)
    expect("none of these came: one that has just come", _ask(q, q.new_lease(**_FRESH), 20).status, "taken")
    expect("another, when it is not full", _ask(q, q.new_lease(**_FRESH), 20).status, "wait")


@probe("take_budget", "reserve_budget_slot")
def the_one_that_is_served_next_holds_up_others_for_ten_seconds(sessions: Sessions) -> None:
    q, clock = sessions.open(), sessions.clock
    clock.take()
    _budget(q)
    expect("first", _ask(q, q.new_lease(**_LONG), 100).status, "taken")
    expect("the next comes in", _waits(q, q.new_lease(**_LONG), 90), 9.0)
    late = q.new_lease(**_LONG)
    clock.advance(18.9)
    expect("beside what is kept", _ask(q, late, 20).status, "wait")
    clock.advance(0.2)
    expect("when its time is up", _ask(q, late, 20, 2).status, "taken")


@probe("reserve_budget_slot")
def who_asks_too_early_keeps_its_moment(sessions: Sessions) -> None:
    q, clock = sessions.open(), sessions.clock
    clock.take()
    _budget(q)
    expect("first", _ask(q, q.new_lease(**_LONG), 100).status, "taken")
    one, two = q.new_lease(**_LONG), q.new_lease(**_LONG)
    expect("the waits", [_waits(q, job, 20) for job in (one, two)], [2.0, 4.0])
    for _ in range(3):
        clock.advance(0.5)
        q.execute("update faultline.open_jobs set next_run_at = faultline.clock() where id = %s", two.job_id)
        _ask(q, _again(q, two), 20)
        q.execute("update faultline.open_jobs set state = 'queued', lease_owner = null, lease_expires_at = null")
    expect("of another", round(_ask(q, q.new_lease(**_LONG), 20).seconds or 0, 1), 4.5)


@probe("reserve_budget_slot", "take_budget")
def several_takes_of_one_run_wait_one_after_another(sessions: Sessions) -> None:
    q, clock = sessions.open(), sessions.clock
    clock.take()
    _budget(q)
    expect("first", _ask(q, q.new_lease(**_LONG), 100).status, "taken")
    expect("another that waits", _waits(q, q.new_lease(**_LONG), 10), 1.0)
    job = q.new_lease(**_LONG)
    expect("its takes", [round(_ask(q, job, 10, n).seconds or 0, 1) for n in (1, 2, 3)], [2.0, 3.0, 4.0])
    q.release(job, delays=[2.0])
    expect("one that comes later", round(_ask(q, q.new_lease(**_LONG), 10).seconds or 0, 1), 5.0)
    clock.advance(1.1)
    for wanted in (["taken", "wait", "wait"], ["taken", "wait"], ["taken"]):
        clock.advance(1.0)
        job = _again(q, job)
        expect("its takes", [_ask(q, job, 10, n).status for n in range(len(wanted))], wanted)
        q.release(job, delays=[0.5])
    expect(
        "the line",
        q.value("select extract(epoch from reserved_until - faultline.clock()) < 1.1 from faultline.budgets"),
        wanted=True,
    )


@probe("reserve_budget_slot")
def who_has_waited_longest_is_served_next(sessions: Sessions) -> None:
    q, clock = sessions.open(), sessions.clock
    clock.take()
    _budget(q)
    taker = q.new_lease(**_LONG)
    expect("first", _ask(q, taker, 100).status, "taken")
    one, two = q.new_lease(**_LONG), q.new_lease(**_LONG)
    expect("the waits", [_waits(q, job, 50) for job in (one, two)], [5.0, 10.0])
    # Both are late, and somebody has taken what they waited for.
    clock.advance(30)
    expect("a full bucket", _ask(q, taker, 100, 2).status, "taken")
    due = {lease.job_id: lease for lease in q.claim()}
    for job, is_next in ((two, two), (one, one), (two, one)):
        expect("too few", _ask(q, due[job.job_id], 50).status, "wait")
        expect("next", q.value("select next_job from faultline.budgets"), is_next.job_id)
        clock.advance(0.01)


@probe("take_budget")
def a_cost_that_can_never_be_had_is_said_to_be_so(sessions: Sessions) -> None:
    q = sessions.open()
    _budget(q)
    lease = q.new_lease()
    asked = _ask(q, lease, 100.5)
    expect("asked", (asked.status, asked.burst), ("never", 100.0))
    for cost in (0, -1, float("nan"), float("inf"), None):
        with refused(q, "FL005", "greater than 0", what=f"a cost of {cost}"):
            q.execute(
                "select faultline.take_budget(%s, %s, %s, 'b', %s::float8)",
                lease.job_id,
                lease.fencing_token,
                lease.owner,
                cost,
            )
    with refused(q, "FL004", 'no budget "x"'):
        q.run(verbs.take_budget(lease, "x", 1, 1))
    for level in ("repeatable read", "serializable"):
        q.begin(level)
        with refused(q, "FL005", "READ COMMITTED"):
            _ask(q, lease, 1)
        q.rollback()
    expect("taken from", q.value("select tokens from faultline.budgets"), None)


@probe("checked_budget", "checked_limit", "set_budget", "declare_budget")
def a_budget_without_a_rate_is_refused(sessions: Sessions) -> None:
    q = sessions.open()
    bad: list[Any] = [{}, {"rate": None}, {"rate": 0}, {"rate": 1, "concurrency": 1}, {"burst": 5}, []]
    for fields in (*bad, {"rate": 1, "burst": 0.5}, {"rate": "fast"}):
        for verb in ("set_budget", "declare_budget"):
            with refused(q, "FL005", what=f"{verb} of {fields}"):
                q.execute(f"select faultline.{verb}('b', %s::jsonb)", json.dumps(fields))
    for name in ("", "x" * 101, "a\nb"):
        with refused(q, "FL005", "name of a budget"):
            q.execute("select faultline.set_budget(%s, '{\"rate\": 1}')", name)
    expect("budgets", q.value("select count(*) from faultline.budgets"), 0)


@probe("write_budget", "set_budget", "declare_budget")
def what_people_set_wins_until_it_is_reset(sessions: Sessions) -> None:
    q = sessions.open()

    def effective() -> Any:
        return q.value("select effective -> 'rate' from faultline.budgets")

    expect("declared", q.run(verbs.declare_budget("b", {"rate": 1})), True)
    expect("declared again", q.run(verbs.declare_budget("b", {"rate": 1})), False)
    expect("set", q.run(verbs.set_budget("b", {"rate": 5}, by="ada", reason="slow")), True)
    expect("set again", q.run(verbs.set_budget("b", {"rate": 5})), False)
    expect("declared by the next build", q.run(verbs.declare_budget("b", {"rate": 2})), True)
    expect("in force", effective(), 5)
    expect("who set it", q.execute("select changed_by, reason from faultline.budgets"), [("ada", "slow")])
    expect("reset", q.run(verbs.set_budget("b", None)), True)
    expect("in force", effective(), 2)
    changes = q.execute(
        "select detail ->> 'by', detail -> 'by_code' from faultline.journal where event = 'limit_changed' order by id"
    )
    expect("on record", [by_code for _, by_code in changes], [True, False, True, False])
    expect("who", changes[1][0], "ada")
    q.run(verbs.set_budget("made", {"rate": 1}))
    q.run(verbs.set_budget("made", None))
    expect("one that no code declares", q.value("select count(*) from faultline.budgets where name = 'made'"), 0)
    expect("reset of none", q.run(verbs.set_budget("made", None)), False)


@probe("declare_budget")
def a_worker_that_starts_with_the_same_code_waits_for_nobody_who_takes(sessions: Sessions) -> None:
    q, starting = sessions.open(), sessions.open()
    q.run(verbs.declare_budget("b", {"rate": 1}))
    q.begin()
    expect("asked", _ask(q, q.new_lease(), 1).status, "taken")
    expect("declared", sessions.at_once(starting, lambda s: s.run(verbs.declare_budget("b", {"rate": 1}))), wanted=False)
    q.commit()


@probe("write_budget")
def a_raised_rate_calls_those_who_wait_at_once(sessions: Sessions) -> None:
    q, clock = sessions.open(), sessions.clock
    clock.take()
    _budget(q, rate=0.01)
    expect("first", _ask(q, q.new_lease(**_LONG), 100).status, "taken")
    one = q.new_lease(**_LONG)
    expect("comes again in", _waits(q, one, 50), 5000.0)
    other = q.new_lease(delay_seconds=0)
    q.release(other, delays=[3600])
    clock.advance(1)
    _budget(q, rate=1)
    again = _again(q, one)
    expect("who sleeps for other reasons", q.state(other.job_id), "queued")
    expect("by the new rate", _waits(q, again, 50), 50.0)
    expect("what was in it is not lost, and no more", _in(q), 0.01)


@probe("take_budget")
def a_clock_that_was_ahead_holds_nobody_up(sessions: Sessions) -> None:
    q, clock = sessions.open(), sessions.clock
    clock.take()
    _budget(q)
    expect("first", _ask(q, q.new_lease(**_LONG), 100).status, "taken")
    clock.advance(86400)
    expect("a day ahead", _ask(q, q.new_lease(lease_seconds=86400), 100).status, "taken")
    expect("waits there", _ask(q, q.new_lease(lease_seconds=86400), 50).status, "wait")
    clock.advance(-86400)
    expect("back again, comes in", _waits(q, q.new_lease(**_LONG), 50), 5.0)
    clock.advance(5.01)
    expect("no token was made", _ask(q, q.new_lease(**_FRESH), 60).status, "wait")


@probe("suspend", "keep_waits")
def a_program_that_waits_for_a_budget_gets_a_new_moment_each_time_and_makes_no_progress(sessions: Sessions) -> None:
    q, clock = sessions.open(), sessions.clock
    clock.take()
    q.enqueue(max_attempts=3)
    lease = q.claim_one()
    q.fail(lease)
    for seconds in (10, 20):
        lease = q.claim_one()
        expect("attempt", lease.attempt, 2)
        moment = q.value("select (faultline.clock() + make_interval(secs => %s))::text", seconds)
        wait = {"number": "0.0.0", "kind": "retry", "name": "b", "until": moment}
        expect("refused", q.run(flow.suspend([lease], [json.dumps([wait])])).stale, [])
        clock.advance(seconds - 1)
        expect("too early", q.claim(), [])
        clock.advance(1.5)
    expect("history", [(one.number, one.kind) for one in q.run(flow.history(lease.job_id))], [("0.0.0", "retry")])
    expect("attempt", q.claim_one().attempt, 2)


_DURABLE: dict[str, Callable[[Session, Lease], object]] = {
    "take_budget": lambda q, lease: _ask(q, lease, 1),
    "declare_budget": lambda q, _: q.run(verbs.declare_budget("b", {"rate": 3})),
    "set_budget": lambda q, _: q.run(verbs.set_budget("b", {"rate": 4})),
}


@probe("require_synchronous_commit")
def what_is_taken_from_budgets_is_durable(sessions: Sessions) -> None:
    q = sessions.open()
    _budget(q)
    for verb, call in _DURABLE.items():
        with q.unsaved():
            lease = q.new_lease()
            q.execute("set local synchronous_commit = off")
            call(q, lease)
            expect(f"synchronous_commit after {verb}", q.value("show synchronous_commit"), "on")


@probe("take_budget")
def nothing_is_kept_for_a_job_that_has_ended(sessions: Sessions) -> None:
    q, clock = sessions.open(), sessions.clock
    clock.take()
    _budget(q, rate=1, burst=30)
    first, large, small = (q.new_lease(**_LONG) for _ in range(3))
    expect("first", _ask(q, first, 30).status, "taken")
    expect("large", _ask(q, large, 30).status, "wait")
    q.run(operate.cancel(large.job_id))
    clock.advance(31)
    expect("small", _ask(q, small, 1).status, "taken")


@probe("reserve_budget_slot")
def who_has_long_to_wait_asks_at_half_of_it_and_keeps_its_place(sessions: Sessions) -> None:
    q, clock = sessions.open(), sessions.clock
    clock.take()
    _budget(q, rate=1, burst=5)
    expect("first", _ask(q, q.new_lease(**_LONG), 5).status, "taken")
    line = [q.new_lease(**_LONG) for _ in range(100)]
    for lease in line:
        _ask(q, lease, 5)
    last = q.new_lease(**_LONG)
    expect("asks again in", round(_waits(q, last, 5)), 253)
    for lease in line:
        q.run(operate.cancel(lease.job_id))
    clock.advance(254)
    expect("in a full bucket", _ask(q, _again(q, last), 5).status, "taken")
