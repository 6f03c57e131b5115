"""Limits and weights that change while jobs run and wait."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from faultline_proof.probes.limit_queues import declare
from faultline_proof.probes.limit_stage import (
    done,
    expect_right_accounts,
    failed,
    groups,
    limit,
    put,
    running,
    take,
)
from faultline_proof.probes.probe import expect, probe

if TYPE_CHECKING:
    from faultline_proof.sessions import Session, Sessions


#: Of twenty grants, so many are half.
_HALF = range(8, 13)


def _fold_all(q: Session) -> None:
    q.execute("update faultline.limited_queues set all_events_applied_at = '-infinity'")
    q.execute("select faultline.maintain_limits()")


@probe("claim_limited")
def a_claim_that_waited_while_its_queue_was_paused_grants_nothing(sessions: Sessions) -> None:
    q, claimer = sessions.open(), sessions.open()
    declare(q, queue={"concurrency": 10})
    put(q, None, 2)
    q.begin()
    take(q, 1)
    q.execute("select faultline.pause('default')")
    waiting = claimer.start(take)
    sessions.wait_until_blocked(claimer, waiting)
    q.commit()
    expect("granted after the commit", waiting.result(), [])


@probe("claim_limited", "set_limit")
def a_claim_that_waited_for_a_new_limit_keeps_it(sessions: Sessions) -> None:
    q, claimer = sessions.open(), sessions.open()
    declare(q, queue={"concurrency": 10})
    put(q, None, 20)
    q.begin()
    limit(q, concurrency=1)
    waiting = claimer.start(take)
    sessions.wait_until_blocked(claimer, waiting)
    q.commit()
    expect("granted after the commit", len(waiting.result()), 1)


@probe("declare_queue", "permit_running_jobs")
def a_first_limit_counts_what_runs(sessions: Sessions) -> None:
    q = sessions.open()
    put(q, None, 40)
    take(q, 4)
    declare(q, queue={"concurrency": 4})
    take(q)
    expect("running", running(q), 4)


@probe("pick_permit_holders", "free_permits")
def a_group_that_is_told_to_keep_its_order_does_so_with_those_that_ran(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    limit(q, "*", concurrency=5)
    put(q, "g", 3)
    held = take(q, 3)
    q.execute("select faultline.set_limit('default', '*', %s::jsonb)", '{"concurrency": null, "ordered": true}')
    failed(q, *held[1:])
    expect("granted beside one that runs", take(q), [])
    failed(q, held[0])
    for _ in range(3):
        sessions.clock.advance(2)
        held = take(q)
        expect("granted", groups(held), ["g"])
        done(q, *held)
    expect_right_accounts(q)


@probe("claim_limited", "pick_permit_holders")
def heads_that_come_again_and_again_leave_half_to_others(sessions: Sessions) -> None:
    q = sessions.open()
    limit(q, concurrency=4)
    limit(q, "*", concurrency=5)
    for group in ("a", "b", "c", "d"):
        limit(q, group, ordered=True, concurrency=None)
        put(q, group, 2, max_attempts=1000)
    held = take(q)
    expect("heads", groups(held), ["a", "b", "c", "d"])
    put(q, "cold", 3)
    put(q, None, 3)
    seen: set[str] = set()
    for _ in range(12):
        failed(q, *(one for one in held if one.group in ("a", "b", "c", "d")))
        done(q, *(one for one in held if one.group not in ("a", "b", "c", "d")))
        held = take(q)
        expect("granted", len(held), 4)
        seen.update(groups(held))
    expect("others that were granted", {"cold", "None"} <= seen, wanted=True)
    expect_right_accounts(q)


@probe("recheck_groups")
def a_weight_that_is_raised_counts_at_once(sessions: Sessions) -> None:
    q = sessions.open()
    limit(q, "*", weight=1)
    limit(q, "a", weight=0.01)
    put(q, "a", 100)
    put(q, "b", 100)
    for _ in range(30):
        done(q, *take(q, 1))
    limit(q, "a", weight=1)
    granted = []
    for _ in range(20):
        held = take(q, 1)
        granted += groups(held)
        done(q, *held)
    expect("grants to each are alike", granted.count("a") in _HALF, wanted=True)


@probe("maintain_queue", "mark_groups_ready")
def a_group_with_a_rate_goes_on_when_the_clock_was_ahead(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    limit(q, "*", rate=1, per=10, burst=1)
    put(q, "a", 3)
    sessions.clock.advance(86_400)
    done(q, *take(q))
    expect("until its next token", take(q), [])
    sessions.clock.advance(-86_400)
    _fold_all(q)
    expect("while its bucket fills", take(q), [])
    sessions.clock.advance(11)
    expect("granted", groups(take(q)), ["a"])


@probe("checked_limit", "cap_of")
def a_whole_number_may_be_written_in_any_way(sessions: Sessions) -> None:
    q = sessions.open()
    q.execute("select faultline.set_limit('default', '', %s::jsonb)", '{"concurrency": 2.0}')
    q.execute("select faultline.set_limit('default', '*', %s::jsonb)", '{"concurrency": 1.0, "ordered": false}')
    put(q, "a", 3)
    put(q, "b", 3)
    expect("granted", groups(take(q)), ["a", "b"])


@probe("keep_rate", "set_limit", "set_budget")
def a_rate_that_a_person_changes_keeps_its_time_and_no_more_start_at_once(sessions: Sessions) -> None:
    q = sessions.open()

    def changed(**fields: Any) -> tuple[Any, ...]:
        limit(q, **fields)
        q.execute("select faultline.set_budget('b', %s::jsonb)", json.dumps(fields))
        [limited] = q.execute("select effective from faultline.limits where group_key = ''")
        [budget] = q.execute("select effective from faultline.budgets")
        expect("limit and budget", limited, budget)
        return tuple(limited[0][name] for name in ("rate", "per", "burst"))

    limit(q, rate=600, per=60, burst=60)
    q.execute("select faultline.set_budget('b', %s::jsonb)", '{"rate": 600, "per": 60, "burst": 60}')
    expect("lower", changed(rate=100), (100, 60, 10))
    expect("higher", changed(rate=1200), (1200, 60, 10))
    expect("in a longer time", changed(rate=1200, per=120), (1200, 120, 5))


@probe("maintain_queue")
def a_group_is_not_forgotten_before_its_tokens_are_back(sessions: Sessions) -> None:
    """One that comes again would have all its tokens."""
    q = sessions.open()
    limit(q, "*", rate=1, per=3600, burst=1)
    put(q, "a", 1)
    done(q, *take(q))
    expect("granted without a token", take(q), [])
    # It has rested for longer than a group without a rate is kept.
    sessions.hand.execute("update faultline.groups set changed_second = changed_second - 60")
    _fold_all(q)
    put(q, "a", 1)
    expect("granted after a rest", take(q), [])
