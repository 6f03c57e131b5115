"""What a claim grants in a queue with limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from faultline_proof.probes.limit_stage import (
    done,
    expect_right_accounts,
    failed,
    given_back,
    groups,
    limit,
    put,
    running,
    take,
)
from faultline_proof.probes.probe import expect, probe

if TYPE_CHECKING:
    from collections.abc import Callable

    from faultline_proof.probes.limit_stage import Held
    from faultline_proof.sessions import Sessions


@probe("claim_limited", "queue_room", "free_permits", "apply_group_events")
def no_more_jobs_of_a_queue_run_than_it_may(sessions: Sessions) -> None:
    q = sessions.open()
    limit(q, concurrency=2)
    put(q, None, 5)
    first = take(q)
    expect("granted", len(first), 2)
    expect("granted beside them", take(q), [])
    done(q, first[0])
    expect("granted for one that is done", len(take(q)), 1)
    failed(q, first[1], delay=3600)
    expect("granted for one that failed", len(take(q)), 1)
    expect("running", running(q), 2)
    expect_right_accounts(q)


@probe("claim_limited", "pick_groups", "free_permits", "apply_group_events", "insert_arrival_events")
def no_more_jobs_of_a_group_run_than_it_may(sessions: Sessions) -> None:
    q = sessions.open()
    limit(q, "*", concurrency=2)
    limit(q, "b", concurrency=1)
    put(q, "a", 4)
    put(q, "b", 4)
    first = take(q)
    expect("granted", groups(first), ["a", "a", "b"])
    expect("granted beside them", take(q), [])
    done(q, *(one for one in first if one.group == "b"))
    expect("granted for one that is done", groups(take(q)), ["b"])
    expect_right_accounts(q)


@probe("claim_limited", "queue_room")
def no_more_jobs_of_a_queue_start_than_its_rate_allows(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    limit(q, rate=4, per=2, burst=3)
    put(q, "a", 5)
    put(q, None, 5)
    expect("granted of a full bucket", len(take(q)), 3)
    expect("granted then", take(q), [])
    sessions.clock.advance(1)
    expect("granted a second later", len(take(q)), 2)
    sessions.clock.advance(60)
    expect("granted a minute later", len(take(q)), 3)


@probe("claim_limited", "pick_groups", "pick_ungrouped", "has_due_ungrouped")
def groups_take_turns_and_jobs_of_none_get_half(sessions: Sessions) -> None:
    q = sessions.open()
    limit(q, concurrency=100)
    put(q, "a", 50)
    put(q, "b", 3)
    put(q, "c", 3)
    expect("the first three", groups(take(q, 3)), ["a", "b", "c"])
    expect("the next six", groups(take(q, 6)), ["a", "a", "b", "b", "c", "c"])
    put(q, None, 1)
    expect("beside one of no group", groups(take(q, 10)), ["None"] + ["a"] * 9)
    put(q, None, 50)
    expect("beside jobs of no group", groups(take(q, 10)), ["None"] * 5 + ["a"] * 5)
    expect_right_accounts(q)


@probe("free_permits")
def a_head_that_is_cancelled_while_it_waits_gives_its_groups_permit_back_alone(sessions: Sessions) -> None:
    q = sessions.open()
    limit(q, concurrency=2)
    limit(q, "*", ordered=True)
    put(q, "a", 2)
    put(q, None, 1)
    for held in take(q, 2):
        if held.group:
            failed(q, held)
            q.execute("select faultline.cancel(%s)", held.job_id)
    expect_right_accounts(q)
    expect("granted then", groups(take(q)), ["a"])
    expect_right_accounts(q)


@probe("free_permits", "free_ended", "complete")
def a_permit_is_free_however_its_lease_ends(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    limit(q, concurrency=1)
    limit(q, "*", concurrency=1)
    endings: tuple[tuple[Callable[[Held], object], int], ...] = (
        (lambda held: done(q, held), 0),
        (lambda held: failed(q, held), 1),
        (lambda held: failed(q, held, then="fail"), 0),
        (lambda held: failed(q, held, then="cancel"), 0),
        (lambda held: given_back(q, held), 1),
        (lambda held: q.execute("select faultline.cancel(%s)", held.job_id), 0),
        (lambda _: q.reap(), 1),
        (lambda _: q.execute("select faultline.recover()"), 1),
    )
    for end, come_back in endings:
        put(q, "a", 1)
        (held,) = take(q)
        expect("granted beside it", take(q), [])
        sessions.clock.advance(100)
        end(held)
        expect_right_accounts(q)
        put(q, "b", 1)
        # A recover holds queues with limits for 30 s.
        sessions.clock.advance(31)
        again = take(q)
        expect("granted after it", len(again), 1)
        done(q, *again)
        rest = take(q)
        expect("granted after that", len(rest), come_back)
        done(q, *rest) if rest else None


@probe("move_due_jobs_into_groups", "claim_limited")
def a_delayed_job_of_a_group_goes_to_its_group_when_it_is_due(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    limit(q, "*", concurrency=1)
    put(q, "a", 1, delay_seconds=60)
    expect("before its time", take(q), [])
    sessions.clock.advance(61)
    expect("at its time", groups(take(q)), ["a"])
    expect_right_accounts(q)


@probe("leave_group")
def a_job_that_is_cancelled_in_its_group_has_its_true_time(sessions: Sessions) -> None:
    q = sessions.open()
    limit(q, "*", concurrency=1)
    (job_id,) = put(q, "a")
    q.execute("select faultline.cancel(%s)", job_id)
    row = q.execute("select in_group, group_at, next_run_at = created_at from faultline.open_jobs where id = %s", job_id)
    expect("its row", row, [(None, None, True)])


@probe("parse_new_jobs")
def a_job_with_a_group_in_a_queue_without_limits_is_a_plain_job(sessions: Sessions) -> None:
    q = sessions.open()
    put(q, "a", 2)
    expect("granted", groups(take(q, 1)), ["a"])
    limit(q, "*", concurrency=1)
    expect("of its group, once it has limits", take(q), [])
    expect_right_accounts(q)


@probe("resume", "claim")
def a_queue_keeps_its_limits_when_it_is_resumed(sessions: Sessions) -> None:
    q = sessions.open()
    limit(q, concurrency=1)
    put(q, None, 3)
    q.execute("select faultline.pause('default')")
    expect("granted while it is paused", take(q), [])
    q.execute("select faultline.resume('default')")
    expect("granted then", len(take(q)), 1)


@probe("write_limit", "recheck_groups")
def a_limit_that_changes_touches_only_groups_that_wait(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    limit(q, "*", concurrency=1)
    limit(q, "dry", concurrency=5, rate=1, per=100, burst=1)
    for group, times in (("full", 2), ("holds", 1), ("dry", 2), ("done", 1)):
        put(q, group, times)
    done(q, *(one for one in take(q) if one.group == "done"))
    put(q, "ready", 1)
    take(q, 0)
    q.execute("select faultline.maintain_limits()")

    def touched(group: str, **fields: Any) -> list[str]:
        q.begin()
        limit(q, group, **fields)
        found = q.execute(
            "select group_key from faultline.groups where xmin = pg_current_xact_id()::xid and queue = 'default' order by 1"
        )
        q.rollback()
        return [key for (key,) in found]

    expect("by a lower limit of the queue", touched("", concurrency=1), [])
    expect("by a higher limit of each group", touched("*", concurrency=2), ["full"])
    expect("by no limit of each group", touched("*", concurrency=None), ["full"])
    expect("by a rate of each group", touched("*", rate=5), [])
    expect("by a lower rate", touched("dry", rate=1, per=1000, burst=1), [])
    expect("by a higher rate", touched("dry", rate=1, per=10, burst=1), ["dry"])
    expect("by no rate", touched("dry", rate=None), ["dry"])
    expect("by a weight of each group", touched("*", weight=2), ["dry", "full", "holds", "ready"])
    expect("by the same weight", touched("*", weight=1), [])


@probe("pick_groups")
def a_group_that_holds_less_is_given_two_before_one_that_holds_more(sessions: Sessions) -> None:
    q = sessions.open()
    limit(q, "*", weight=1)
    put(q, "a", 9)
    expect("held", len(take(q, 4)), 4)
    put(q, "b", 9)
    expect("granted", groups(take(q, 2)), ["b", "b"])
    expect_right_accounts(q)


@probe("write_limit", "recheck_groups", "pick_groups")
def a_weight_that_is_set_counts_for_what_runs(sessions: Sessions) -> None:
    q = sessions.open()
    limit(q, "*", weight=1)
    put(q, "a", 9)
    held = take(q, 2)
    put(q, "b", 9)
    held += take(q, 1)
    expect("held", groups(held), ["a", "a", "b"])
    limit(q, "a", weight=10)
    expect("whose turn it is", groups(take(q, 1)), ["a"])


@probe("claim_limited", "free_permits", "enqueue_many", "complete")
def an_enqueue_or_a_completion_waits_for_no_claim(sessions: Sessions) -> None:
    q, claimer = sessions.open(), sessions.open()
    limit(q, concurrency=5)
    limit(q, "*", concurrency=5)
    put(q, "a", 3)
    held = take(q, 1)
    claimer.begin()
    take(claimer, 1)
    sessions.at_once(q, lambda own: put(own, "a", 1))
    sessions.at_once(q, lambda own: put(own, "new", 1))
    sessions.at_once(q, lambda own: done(own, *held))
    claimer.commit()
    expect("granted then", groups(take(q)), ["a", "a", "new"])
    expect_right_accounts(q)


@probe("claim_limited", "recover")
def no_more_jobs_of_a_queue_run_than_it_may_after_a_recover(sessions: Sessions) -> None:
    """Those that ran may run on until their workers are refused, or until their leases end."""
    q = sessions.open()
    sessions.clock.take()
    limit(q, concurrency=2)
    put(q, None, 5, lease_seconds=45)
    expect("granted", len(take(q)), 2)
    sessions.clock.advance(20)
    q.execute("select faultline.recover()")
    expect("granted beside those that may still run", take(q), [])
    sessions.clock.advance(44)
    expect("granted before the longest lease is over", take(q), [])
    sessions.clock.advance(1)
    first = take(q)
    expect("granted when it is over", len(first), 2)
    given_back(q, *first)
    q.execute("select faultline.recover()")
    sessions.clock.advance(29)
    expect("granted where no lease is known: some may be lost", take(q), [])
    sessions.clock.advance(1)
    expect("granted then", len(take(q)), 2)
    expect_right_accounts(q)


@probe("maintain_limits", "recover")
def a_recover_while_the_clock_is_ahead_holds_no_longer_than_it_meant_to(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    limit(q, concurrency=2)
    put(q, None, 5)
    sessions.clock.advance(3600)
    q.execute("select faultline.recover()")
    sessions.clock.advance(-3600)
    q.execute("select faultline.maintain_limits()")
    sessions.clock.advance(29)
    q.execute("select faultline.maintain_limits()")
    expect("granted too early", take(q), [])
    sessions.clock.advance(1)
    expect("granted", len(take(q)), 2)


@probe("claim_limited")
def a_claim_that_waited_for_a_recover_grants_nothing(sessions: Sessions) -> None:
    """Its permits are read after the recover has freed them, so the hold must be, too."""
    operator, claimer = sessions.open(), sessions.open()
    limit(operator, concurrency=2)
    put(operator, None, 5)
    expect("granted", len(take(operator)), 2)
    operator.begin()
    operator.execute("select faultline.recover()")
    waiting = claimer.start(take)
    sessions.wait_until_blocked(claimer, waiting)
    operator.commit()
    expect("granted to a claim that waited", waiting.result(), [])
