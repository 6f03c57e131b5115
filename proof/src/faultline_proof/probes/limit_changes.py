"""Limits, shards and weights that change while jobs run and wait."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

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


def _declare(q: Session, shards: int, queue: dict[str, Any] | None = None, each_group: dict[str, Any] | None = None) -> None:
    declared = json.dumps({"queue": queue or {}, "each_group": each_group or {}})
    q.execute("select faultline.declare_queue('default', %s::jsonb, %s)", declared, shards)


def _group_of(q: Session, shard: int, shards: int, start: int = 0) -> str:
    names = (f"g{n}" for n in itertools.count(start))
    return next(name for name in names if q.value("select faultline.shard_of(%s, %s)", name, shards) == shard)


def _fold_all(q: Session) -> None:
    q.execute("update faultline.shards set all_events_applied_at = '-infinity'")
    q.execute("select faultline.maintain_limits()")


@probe("reshard", "rewrite_events_of_old_shards", "pick_permit_holders")
def a_retry_that_kept_its_permit_starts_after_the_shards_have_changed(sessions: Sessions) -> None:
    q = sessions.open()
    _declare(q, 4, each_group={"ordered": True})
    group = _group_of(q, 3, 4)
    put(q, group, 2)
    failed(q, *take(q, 1))
    _declare(q, 1, each_group={"ordered": True})
    held = take(q)
    expect("granted", groups(held), [group])
    _declare(q, 4, each_group={"ordered": True})
    failed(q, *held)
    _fold_all(q)
    expect("granted with more shards", groups(take(q)), [group])
    expect_right_accounts(q)


@probe("free_permits")
def a_retry_of_who_ran_while_the_shards_changed_starts_at_once(sessions: Sessions) -> None:
    q = sessions.open()
    _declare(q, 4, each_group={"ordered": True})
    group = _group_of(q, 3, 4)
    put(q, group, 1)
    held = take(q)
    _declare(q, 1, each_group={"ordered": True})
    failed(q, *held)
    expect("granted", groups(take(q)), [group])
    expect_right_accounts(q)


@probe("claim_limited")
def a_claim_that_waited_while_its_queue_was_paused_grants_nothing(sessions: Sessions) -> None:
    q, claimer = sessions.open(), sessions.open()
    _declare(q, 1, queue={"concurrency": 10})
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
    _declare(q, 1, queue={"concurrency": 10})
    put(q, None, 20)
    q.begin()
    limit(q, concurrency=1)
    waiting = claimer.start(take)
    sessions.wait_until_blocked(claimer, waiting)
    q.commit()
    expect("granted after the commit", len(waiting.result()), 1)


@probe("claim_limited", "declare_queue")
def a_claim_that_waited_for_other_shards_grants_nothing(sessions: Sessions) -> None:
    q, claimer = sessions.open(), sessions.open()
    _declare(q, 1, queue={"concurrency": 10})
    put(q, None, 40)
    q.begin()
    _declare(q, 2, queue={"concurrency": 10})
    waiting = claimer.start(take)
    sessions.wait_until_blocked(claimer, waiting)
    q.commit()
    expect("granted by the number from before", waiting.result(), [])
    take(q)
    expect("running", running(q), 10)
    expect_right_accounts(q)


@probe("set_limit", "reset_limit", "rebalance_permits_now", "rebalance_permits")
def what_a_shard_was_lent_ends_with_the_limit(sessions: Sessions) -> None:
    q = sessions.open()
    _declare(q, 2, queue={"concurrency": 4})
    limit(q, concurrency=10)
    for group in (_group_of(q, 0, 2), _group_of(q, 0, 2, 50)):
        put(q, group, 30)
    held = take(q)
    q.execute("select faultline.maintain_limits()")
    held += take(q)
    expect("granted to one shard", len(held), 10)
    q.execute("select faultline.reset_limit('default')")
    done(q, *held)
    held = take(q)
    expect("granted by what is declared", len(held), 4)
    limit(q, concurrency=2)
    done(q, *held)
    expect("granted by the lower limit", len(take(q)), 2)


@probe("declare_queue", "rebalance_permits_now", "rebalance_permits", "permit_running_jobs", "reshard")
def a_limit_counts_what_runs_in_whatever_shards(sessions: Sessions) -> None:
    q = sessions.open()
    _declare(q, 1, queue={"concurrency": 4})
    put(q, None, 40)
    take(q)
    _declare(q, 4, queue={"concurrency": 4})
    take(q)
    expect("running with more shards", running(q), 4)


@probe("declare_queue", "rebalance_permits_now", "permit_running_jobs")
def a_first_limit_with_shards_counts_what_runs(sessions: Sessions) -> None:
    q = sessions.open()
    put(q, None, 40)
    take(q, 4)
    _declare(q, 4, queue={"concurrency": 4})
    take(q)
    expect("running", running(q), 4)


@probe("limit_queue", "reshard")
def new_shards_bring_no_tokens(sessions: Sessions) -> None:
    q = sessions.open()
    put(q, None, 100)
    starts = 0
    for shards in (1, 8, 1, 8):
        _declare(q, shards, queue={"rate": 8, "per": 3600, "burst": 8})
        starts += sum(len(take(q)) for _ in range(3))
    expect("starts", starts, 8)


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


@probe("maintain_queue", "rewrite_events_of_old_shards")
def what_was_written_for_a_shard_that_is_gone_is_heard_by_the_next_fold(sessions: Sessions) -> None:
    q, late = sessions.open(), sessions.open()
    _declare(q, 4, each_group={"concurrency": 1})
    group = _group_of(q, 3, 4)
    late.begin()
    put(late, group, 1)
    _declare(q, 1, each_group={"concurrency": 1})
    _fold_all(q)
    late.commit()
    q.execute("select faultline.maintain_limits()")
    expect("granted", groups(take(q)), [group])


@probe("recount_queue", "recount", "rewrite_events_of_old_shards")
def permits_that_were_given_back_to_a_shard_that_is_gone_are_counted_once(sessions: Sessions) -> None:
    q, late = sessions.open(), sessions.open()
    _declare(q, 4, queue={"concurrency": 4})
    put(q, times=12)
    held = take(q)
    expect("granted", len(held), 4)
    q.execute("select faultline.maintain_limits()")
    late.begin()
    done(late, *held)
    _declare(q, 1, queue={"concurrency": 4})
    late.commit()
    expect("counted right", q.value("select faultline.is_miscounted('default')"), wanted=False)
    q.execute("select faultline.recount()")
    take(q)
    q.execute("select faultline.maintain_limits()")
    take(q)
    expect("run at once", running(q), 4)
    expect_right_accounts(q)


@probe("rewrite_events_of_old_shards", "reshard", "lock")
def a_change_of_shards_waits_for_no_submitter(sessions: Sessions) -> None:
    q, submitter = sessions.open(), sessions.open()
    sessions.clock.take()
    _declare(q, 4, each_group={"ordered": True})
    group = _group_of(q, 3, 4)
    put(q, group, unique={"key": "k"})
    failed(q, *take(q), delay=60)
    submitter.begin()
    put(submitter, group, unique={"key": "k"})
    q.execute("set lock_timeout = '1s'")
    _declare(q, 1, each_group={"ordered": True})
    put(q, "another")
    expect("granted meanwhile", groups(take(q)), ["another"])
    submitter.commit()
    sessions.clock.advance(120)
    q.execute("select faultline.maintain_limits()")
    expect("granted", groups(take(q)), [group])
    expect_right_accounts(q)


@probe("rebalance_permits", "maintain_queue")
def every_shard_has_its_turn_of_few_permits(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    _declare(q, 4, queue={"concurrency": 1})
    names = [_group_of(q, shard, 4) for shard in range(4)]
    for name in names:
        put(q, name, 20)
    seen: set[str] = set()
    held = take(q)
    for _ in range(24):
        # A permit is in use whenever upkeep looks.
        q.execute("select faultline.maintain_limits()")
        done(q, *held)
        q.execute("select faultline.maintain_limits()")
        held = take(q)
        expect("running at once", running(q) <= 1, wanted=True)
        seen.update(groups(held))
        sessions.clock.advance(1)
    expect("groups that were granted something", sorted(seen), sorted(names))


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


@probe("maintain_queue")
def a_fold_that_knew_another_number_of_shards_moves_nothing(sessions: Sessions) -> None:
    q = sessions.open()
    _declare(q, 4)
    group = _group_of(q, 3, 4)
    put(q, group, 1)
    sessions.hand.execute("select faultline.maintain_queue('default', 1, 100, false)")
    expect("events of its shard", q.value("select count(*) from faultline.group_events where shard = 3"), 1)
    expect("granted", groups(take(q)), [group])
