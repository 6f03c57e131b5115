"""Where groups come in, and that a claim sees each of them: those that hold nothing are read from the queue's turn on."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from faultline_proof.probes.flow_plans import rows_read
from faultline_proof.probes.limit_stage import done, expect_right_accounts, groups, limit, put, take
from faultline_proof.probes.probe import expect, probe

if TYPE_CHECKING:
    from collections.abc import Callable

    from faultline_proof.sessions import Session, Sessions

#: So many groups were served while somebody held an old snapshot,
_SERVED = 300
#: and so many rows and entries may be read for one job.
_FEW = 300


def _put_each(q: Session, names: list[str]) -> None:
    jobs = json.dumps([{"task": "t", "group": name} for name in names])
    q.execute("select count(*) from faultline.enqueue_many(%s::text)", jobs)


def _move_on(q: Session, name: str = "mover") -> None:
    """One group is served three times: what stood where it began stands behind the turn of their queue."""
    put(q, name, 3)
    for _ in range(3):
        held = take(q, 1)
        expect("the only one that may", groups(held), [name])
        done(q, *held)


def _expect_served(q: Session, name: str) -> None:
    expect("served", groups(take(q, 1)), [name])
    expect_right_accounts(q)


def _reads_few(q: Session, what: str, call: Callable[[], object]) -> None:
    before = rows_read(q)
    call()
    read = rows_read(q) - before
    if read > _FEW:
        raise AssertionError(f"{what} read {read} rows and entries, and {3 * _SERVED} are gone")


def _forget_others(sessions: Sessions) -> None:
    """Remove what is left in the indexes of stories that were played in this database before: it would be counted too."""
    sessions.hand.execute(
        "vacuum (index_cleanup on) faultline.open_jobs, faultline.groups, faultline.group_events, faultline.limited_queues"
    )


@probe(
    "plan",
    "pick_groups",
    "claim_limited",
    "next_claim_at",
    "has_due_ungrouped",
    "apply_events_to_groups",
    "apply_group_events",
    "limited_queues",
    "groups",
    "save_limited_queue",
)
def a_claim_reads_no_turns_that_were_served(sessions: Sessions) -> None:
    """While somebody holds an old snapshot, vacuum cannot remove them, and they would be read each time."""
    _forget_others(sessions)
    q, holder = sessions.open(), sessions.open()
    limit(q, "*", concurrency=1)
    holder.begin("repeatable read")
    holder.execute("select from faultline.groups")
    for _ in range(3):
        _put_each(q, [f"g{n}" for n in range(_SERVED)])
        # A few at a time: those of the last claim may be read again.
        for _ in range(_SERVED // 20):
            held = take(q, 20)
            expect("granted", len(held), 20)
            done(q, *held)

    with q.unsaved():
        put(q, "new", 1)
        _reads_few(q, "a claim", lambda: expect("granted", groups(take(q, 1)), ["new"]))
        _reads_few(q, "a claim of nothing", lambda: expect("granted", take(q, 1), []))
        _reads_few(q, "a look for the next turn", lambda: q.execute("select faultline.next_claim_at('default')"))


@probe("plan", "has_due_ungrouped", "pick_ungrouped")
def a_claim_walks_no_delayed_jobs_that_are_gone(sessions: Sessions) -> None:
    """Most jobs have priority 0: to look for the next priority from below it would be to walk all that had it."""
    _forget_others(sessions)
    q, holder = sessions.open(), sessions.open()
    limit(q, "*", concurrency=1)
    put(q, None, 3 * _SERVED, delay_seconds=3600)
    holder.begin("repeatable read")
    holder.execute("select from faultline.open_jobs")
    sessions.hand.execute("delete from faultline.open_jobs")
    with q.unsaved():
        _reads_few(q, "a claim of nothing", lambda: expect("granted", take(q, 1), []))
        put(q, "a", 1)
        _reads_few(q, "a claim of a group", lambda: expect("granted", groups(take(q, 1)), ["a"]))


@probe("pick_groups", "apply_events_to_groups", "save_limited_queue", "limited_queues")
def groups_that_hold_nothing_are_served_in_the_order_in_which_they_came_in(sessions: Sessions) -> None:
    q = sessions.open()
    limit(q, concurrency=1)
    _put_each(q, ["x", "y", "z"])
    for _ in range(2):
        held = take(q, 1)
        expect("granted", held[0].group in {"x", "y", "z"}, wanted=True)
        put(q, "a", 1)
        expect("granted beyond the limit", take(q, 1), [])
        done(q, *held)
    expect("granted before the last of those who came first", take(q, 1)[0].group in {"x", "y", "z"}, wanted=True)
    expect_right_accounts(q)


@probe("apply_events_to_groups", "pick_groups")
def a_group_whose_last_permit_is_free_again_is_seen(sessions: Sessions) -> None:
    q = sessions.open()
    limit(q, "*", concurrency=2)
    put(q, "slow", 2)
    slow = take(q, 1)
    expect("granted", groups(slow), ["slow"])
    _move_on(q)
    done(q, *slow)
    _expect_served(q, "slow")


@probe("apply_events_to_groups", "pick_groups")
def a_group_that_gets_jobs_again_is_seen(sessions: Sessions) -> None:
    q = sessions.open()
    limit(q, "*", concurrency=1)
    put(q, "rare", 1)
    done(q, *take(q, 1))
    _move_on(q)
    put(q, "rare", 1)
    _expect_served(q, "rare")


@probe("mark_groups_ready", "pick_groups")
def a_group_that_waited_for_a_token_is_seen(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    limit(q, "paced", rate=1, per=60)
    put(q, "paced", 2)
    done(q, *take(q, 1))
    expect("granted without a token", take(q, 1), [])
    _move_on(q)
    sessions.clock.advance(61)
    _expect_served(q, "paced")


@probe("recheck_groups", "set_limit", "pick_groups")
def a_group_whose_rate_was_raised_is_seen(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    limit(q, "paced", rate=1, per=3600)
    put(q, "paced", 2)
    done(q, *take(q, 1))
    _move_on(q)
    limit(q, "paced", rate=1000, per=1)
    sessions.clock.advance(1)
    _expect_served(q, "paced")


@probe("recheck_groups", "set_limit", "pick_groups")
def a_group_whose_weight_was_changed_is_seen(sessions: Sessions) -> None:
    q = sessions.open()
    limit(q, concurrency=1)
    limit(q, "heavy", weight=2)
    put(q, "last", 1)
    held = take(q, 1)
    put(q, "heavy", 1)
    expect("granted beyond the limit", take(q, 1), [])
    limit(q, "heavy", weight=4)
    expect_right_accounts(q)
    done(q, *held)
    _expect_served(q, "heavy")


@probe("recount_queue", "maintain_limits", "maintain_queue", "pick_groups")
def a_group_that_was_counted_anew_is_seen(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    limit(q, "*", concurrency=1)
    put(q, "wrong", 2)
    done(q, *take(q, 1))
    q.execute("select faultline.maintain_limits()")
    sessions.hand.execute(
        "update faultline.groups set holding = 7, holding_per_weight = 7, ready = false where group_key = 'wrong'"
    )
    _move_on(q)
    sessions.clock.advance(120)
    q.execute("select faultline.maintain_limits()")
    _expect_served(q, "wrong")


@probe("maintain_queue", "maintain_limits")
def a_group_that_stands_before_its_turn_is_put_right_within_a_minute(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    limit(q, concurrency=1)
    put(q, "lost", 2)
    done(q, *take(q, 1))
    _move_on(q, "lost")
    put(q, "lost", 1)
    held = take(q, 1)
    done(q, *held)
    expect("heard", len(held), 1)
    q.execute("select faultline.next_claim_at('default')")
    sessions.hand.execute(
        "update faultline.groups set virtual_time = virtual_time - 100, holding_per_weight = 0, holding = 0, ready = true,"
        " has_waiting = true"
    )
    sessions.hand.execute("update faultline.limited_queues set holding = 0")
    sessions.hand.execute("delete from faultline.group_events")
    expect("seen by a claim", take(q, 1), [])
    sessions.clock.advance(120)
    q.execute("select faultline.maintain_limits()")
    _expect_served(q, "lost")


@probe("maintain_queue", "maintain_limits")
def a_group_whose_time_was_set_by_a_clock_ahead_is_seen(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    limit(q, "*", concurrency=1)
    put(q, "ahead", 2)
    done(q, *take(q, 1))
    q.execute("select faultline.maintain_limits()")
    sessions.hand.execute(
        "update faultline.groups set ready = false, holding = 0, holding_per_weight = 0,"
        " not_before = faultline.clock() + interval '1 year', changed_second = changed_second + 31536000 where group_key ="
        " 'ahead'"
    )
    _move_on(q)
    sessions.clock.advance(120)
    q.execute("select faultline.maintain_limits()")
    _expect_served(q, "ahead")


@probe("apply_group_events", "maintain_queue", "maintain_limits")
def what_was_open_when_there_was_nothing_to_hear_is_heard(sessions: Sessions) -> None:
    q, late = sessions.open(), sessions.open()
    sessions.clock.take()
    limit(q, "*", concurrency=1)
    late.begin()
    put(late, "late", 1)
    sessions.clock.advance(120)
    q.execute("select faultline.maintain_limits()")
    late.commit()
    _expect_served(q, "late")


@probe("maintain_limits")
def a_fold_holds_the_locks_of_few_queues(sessions: Sessions) -> None:
    q = sessions.open()
    for number in range(60):
        limit(q, queue=f"q{number}", concurrency=1)
    unheard = "select count(*) from faultline.limited_queues where all_events_applied_at = '-infinity'"
    q.execute("select faultline.maintain_limits()")
    expect("queues left for the next time", q.value(unheard), 10)
    for _ in range(100):
        if not q.value(unheard):
            return
        q.execute("select faultline.maintain_limits()")
    raise AssertionError("some queues were never folded")


@probe("pick_groups", "apply_events_to_groups", "save_served_groups")
def a_group_that_waits_is_served_however_many_come_in_after_it(sessions: Sessions) -> None:
    """One job of a new group comes in before each claim. All that wait share alike, so the gaps grow by one each time."""
    q = sessions.open()
    limit(q, concurrency=1)
    put(q, "waits", 30)
    served = []
    for nth in range(60):
        put(q, f"new {nth}", 1)
        held = take(q, 1)
        served += groups(held)
        done(q, *held)
    enough = 9
    expect("served often enough", min(served.count("waits"), enough), enough)
