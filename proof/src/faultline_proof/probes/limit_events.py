"""What happened to groups is heard, whatever commits late, is locked, or happens in one transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from faultline_proof.probes.limit_stage import (
    done,
    ended,
    expect_right_accounts,
    given_back,
    groups,
    limit,
    put,
    put_each,
    take,
)
from faultline_proof.probes.probe import expect, probe

if TYPE_CHECKING:
    from uuid import UUID

    from faultline_proof.sessions import Session, Sessions


@probe("open_xids", "apply_group_events")
def an_event_that_is_committed_late_is_heard(sessions: Sessions) -> None:
    q, late = sessions.open(), sessions.open()
    limit(q, "a", concurrency=1)
    late.begin()
    put(late, "a", 1)
    for group in "bc":
        put(q, group, 1)
        expect("granted meanwhile", groups(take(q)), [group])
    late.commit()
    expect("heard though it committed late", groups(take(q)), ["a"])


@probe("guards.sql", "open_jobs", "free_permits", "reconcile")
def a_running_job_whose_row_is_removed_gives_its_permits_back(sessions: Sessions) -> None:
    q = sessions.open()
    limit(q, "*", concurrency=1)
    put(q, "a", 2)
    [held] = take(q)
    sessions.hand.execute(
        "insert into faultline.ledger select id, 7, now(), now(), now(), 0, 1, 5, 'w', queue, task, null, args, null"
        " from faultline.open_jobs where id = %s",
        held.job_id,
    )
    expect("removed, as after a restore", q.execute("select faultline.reconcile()"), [(held.job_id,)])
    expect("the next", groups(take(q)), ["a"])
    expect_right_accounts(q)
    told = "select count(*) from faultline.journal where event = 'permits_recounted'"
    expect("counted anew", q.value(told), 0)


@probe("apply_group_events")
def a_job_that_is_committed_late_runs_though_the_group_went_on(sessions: Sessions) -> None:
    q, late = sessions.open(), sessions.open()
    limit(q, "*", concurrency=5)
    late.begin()
    (early,) = put(late, "a", 1)
    (newer,) = put(q, "a", 1)
    expect("granted meanwhile", [one.job_id for one in take(q)], [newer])
    late.commit()
    expect("granted then", [one.job_id for one in take(q)], [early])
    expect_right_accounts(q)


@probe("open_xids", "apply_group_events")
def an_event_of_the_claims_own_transaction_is_heard_by_the_next(sessions: Sessions) -> None:
    q, other = sessions.open(), sessions.open()
    limit(q, "a", concurrency=1)
    q.begin()
    put(q, "a", 2)
    # So that the number of the transaction lies below those that have ended.
    put(other, "b", 1)
    done(q, *take(q))
    q.commit()
    expect("granted then", groups(take(q)), ["a"])
    expect_right_accounts(q)


@probe("apply_group_events")
def a_turn_is_for_groups_where_something_may_be_granted(sessions: Sessions) -> None:
    """Looked at while the queue is full: then no claim walks the groups, and mends what `apply_group_events` says."""
    q = sessions.open()
    limit(q, concurrency=3)
    limit(q, "*", concurrency=1)
    for group in "abc":
        put(q, group, 1)
    held = {one.group: one for one in take(q)}
    limit(q, concurrency=1)
    done(q, held["a"])
    put(q, "b", 1)
    expect("granted", take(q), [])
    ready = q.execute("select group_key from faultline.groups where ready")
    expect("with a turn: neither an empty one nor a full one", ready, [])
    put(q, "a", 1)
    expect("granted", take(q), [])
    expect("with a turn", q.execute("select group_key from faultline.groups where ready"), [("a",)])


@probe("apply_group_events", "mark_groups_ready")
def a_group_that_comes_back_begins_where_the_others_are(sessions: Sessions) -> None:
    q = sessions.open()
    limit(q, concurrency=10)
    put(q, "seldom", 1)
    done(q, *take(q))
    put(q, "busy", 60)
    for _ in range(20):
        done(q, *take(q, 1))
    put(q, "seldom", 20)
    found: list[str] = []
    for _ in range(10):
        held = take(q, 1)
        found += groups(held)
        done(q, *held)
    expect("of ten, those of the one that was busy", found.count("busy") in range(4, 7), wanted=True)


@probe("pick_groups")
def who_holds_least_is_served_first_whatever_its_turn(sessions: Sessions) -> None:
    q = sessions.open()
    limit(q, concurrency=100)
    put(q, "long", 50)
    take(q, 4)
    put(q, "short", 50)
    for _ in range(10):
        held = take(q, 1)
        expect("granted", groups(held), ["short"])
        done(q, *held)
    expect("granted together", groups(take(q, 4)), ["short"] * 4)


@probe("apply_group_events", "permit_running_jobs", "maintain_queue")
def what_ran_before_there_were_limits_is_counted_where_others_wait(sessions: Sessions) -> None:
    q, user = sessions.open(), sessions.open()
    put(q, "a", 1)
    (held,) = take(q)
    # Somebody holds its row while the first limit is set: it is counted later.
    user.begin()
    user.execute("select from faultline.open_jobs where id = %s for update", held.job_id)
    limit(q, "*", concurrency=2)
    put(q, "a", 3)
    expect("granted", len(take(q, 1)), 1)
    user.rollback()
    for _ in range(2):
        sessions.hand.execute("update faultline.limited_queues set all_events_applied_at = '-infinity'")
        q.execute("select faultline.maintain_limits()")
    expect("granted beside both", take(q), [])
    expect_right_accounts(q)


@probe("pick_groups")
def no_job_of_a_group_that_is_looked_at_in_two_rounds_is_granted_twice(sessions: Sessions) -> None:
    """The heavy group has less than its part, so the light one is looked at in two rounds."""
    q = sessions.open()
    limit(q, "heavy", weight=100)
    put(q, "heavy", 1)
    put(q, "light", 5)
    expect("granted", groups(take(q, 10)), ["heavy", *["light"] * 5])
    expect("counted", q.value("select holding from faultline.limited_queues"), 6)
    expect_right_accounts(q)


@probe("pick_groups")
def a_row_that_somebody_has_locked_is_not_forgotten(sessions: Sessions) -> None:
    q, user = sessions.open(), sessions.open()
    sessions.clock.take()
    limit(q, "*", concurrency=5)
    job_ids = put(q, "a", 3)
    user.begin()
    user.execute("select from faultline.open_jobs where id = %s for update", job_ids[0])
    held = take(q)
    expect("granted beside it", len(held), 2)
    user.rollback()
    sessions.clock.advance(0.2)
    expect("granted then", [one.job_id for one in take(q)], [job_ids[0]])
    given_back(q, *held)
    expect("given back", len(take(q)), 2)
    expect_right_accounts(q)


def _lock(user: Session, *job_ids: UUID) -> None:
    user.begin()
    user.execute("select from faultline.open_jobs where id = any (%s) for update", list(job_ids))


@probe("pick_past_locked_head", "pick_groups")
def a_row_that_somebody_has_locked_holds_up_no_other_of_its_group(sessions: Sessions) -> None:
    q, user = sessions.open(), sessions.open()
    sessions.clock.take()
    limit(q, "*", concurrency=2)
    first, *others = put(q, "a", 5)
    put(q, "a", 1, expires_seconds=5.0, priority=-1)
    other = put(q, "b", 1)
    _lock(user, first)
    sessions.clock.advance(6)
    held = take(q)
    expect("granted beside it", [one.job_id for one in held], [*others[:2], *other])
    expect("as many as it may", q.value("select holding from faultline.groups where group_key = 'a'"), 2)
    done(q, *held)
    sessions.clock.advance(0.2)
    held = take(q)
    expect("granted then", [one.job_id for one in held], others[2:])
    done(q, *held)
    sessions.clock.advance(0.2)
    expect("none that has expired", take(q), [])
    user.rollback()
    sessions.clock.advance(0.2)
    expect("granted when it is free", [one.job_id for one in take(q)], [first])
    expect_right_accounts(q)


@probe("pick_past_locked_head")
def a_row_that_somebody_has_locked_holds_up_a_group_that_keeps_its_order(sessions: Sessions) -> None:
    q, user = sessions.open(), sessions.open()
    sessions.clock.take()
    limit(q, "*", ordered=True)
    first, *_ = put(q, "a", 3)
    _lock(user, first)
    expect("granted behind it", take(q), [])
    user.rollback()
    sessions.clock.advance(0.2)
    expect("granted then", [one.job_id for one in take(q)], [first])
    expect_right_accounts(q)


@probe("pick_past_locked_head")
def no_job_is_granted_twice_beside_a_locked_row(sessions: Sessions) -> None:
    """As above, and what somebody has locked is met in the second round."""
    q, user = sessions.open(), sessions.open()
    limit(q, "heavy", weight=100)
    put(q, "heavy", 1)
    light = put(q, "light", 12)
    _lock(user, light[4])
    expect("granted", groups(take(q, 10)), ["heavy", *["light"] * 9])
    expect("counted", q.value("select holding from faultline.limited_queues"), 10)
    user.rollback()
    expect_right_accounts(q)


@probe("is_miscounted", "maintain_limits", "maintain_queue", "recount_queue")
def a_count_that_somebody_made_wrong_is_right_within_a_minute(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    limit(q, "a", concurrency=3)
    put(q, "a", 3)
    held = take(q, 2)
    for wrong in ("update faultline.limited_queues set holding = 7", "update faultline.groups set holding = 0"):
        sessions.hand.execute(wrong)
        sessions.clock.advance(61)
        q.execute("select faultline.maintain_limits()")
        expect_right_accounts(q)
    done(q, *held)
    expect("granted then", groups(take(q)), ["a"])


@probe("complete", "free_ended", "wake_for_free_permit")
def nobody_is_woken_for_a_permit_that_its_holder_claims_itself(sessions: Sessions) -> None:
    q, claims = sessions.open(), ", null::jsonb, true"
    limit(q, concurrency=2)
    put(q, "a", 4)
    held = take(q)
    expect("granted of more", take(q), [])
    q.execute("listen faultline")
    q.value("select faultline.heartbeat('sleeper', 'host', 1, '1', array['default'], array['default'])")
    q.notices()
    with_claims, without = held
    q.begin()
    expect("refused", ended(q, with_claims, more=claims), [])
    q.commit()
    expect("woken", q.notices(), [])
    done(q, without)
    expect("woken by who does not claim", len(q.notices()), 1)
    q.begin()
    expect("refused", ended(q, *(again := take(q))[:1], more=claims), [])
    done(q, *again[1:])
    q.commit()
    expect("woken by the second of one transaction", len(q.notices()), 1)


@probe("insert_group_events", "free_ended", "apply_group_events")
def a_claim_hears_of_few_groups_at_a_time(sessions: Sessions) -> None:
    """However many came in with one submission, or ended together: no claim takes long, and the next one goes on. Nor does
    one hear of fewer than it may grant.
    """
    q = sessions.open()
    limit(q, "*", concurrency=1)
    put_each(q, 2_500)
    expect("groups in an event", q.value("select max(group_count) from faultline.group_events"), 100)
    expect("granted", len(take(q, 10)), 10)
    expect("groups heard of", q.value("select (count(*) - 1) / 600 from faultline.groups"), 0)
    leases = take(q, 1_000)
    expect("granted of a thousand", len(leases), 1_000)
    leases += [lease for _ in range(2) for lease in take(q, 500)]
    expect("groups heard of then", q.value("select count(*) from faultline.groups"), 2_500)
    expect("granted then", len(leases), 2_000)
    done(q, *leases)
    expect("groups in an event of an ending", q.value("select max(group_count) from faultline.group_events"), 100)
    expect("granted of the rest", len([one for _ in range(3) for one in take(q, 500)]), 490)
    expect_right_accounts(q)


@probe("claim_limited")
def a_claim_hears_on_until_it_can_grant_something(sessions: Sessions) -> None:
    """What it hears of first may be jobs of groups that have all they may have."""
    q = sessions.open()
    limit(q, "*", concurrency=1)
    put_each(q, 700)
    expect("granted", len(take(q, 700)), 700)
    put_each(q, 700)
    put(q, "z", 1)
    expect("granted then", groups(take(q, 1)), ["z"])


@probe("apply_group_events")
def a_claim_that_finds_nothing_looks_from_there_on(sessions: Sessions) -> None:
    """From the beginning on, it would walk the entries of all events that were ever heard, until they are vacuumed."""
    q = sessions.open()
    limit(q, "*", concurrency=1)
    expect("granted", take(q), [])
    expect("looks from the beginning on", q.value("select seen_to = '0' from faultline.limited_queues"), wanted=False)
