"""A queue with limits never stands still: what may start starts, whatever came in before or is gone again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from faultline_proof.probes.limit_queues import declare
from faultline_proof.probes.limit_stage import done, expect_right_accounts, failed, groups, limit, put, put_each, take
from faultline_proof.probes.probe import expect, probe

if TYPE_CHECKING:
    from faultline_proof.sessions import Session, Sessions


def _next_turn(q: Session) -> Any:
    return q.value("select faultline.next_claim_at('default')::text")


def _tell_in_vain(q: Session, group: str, number: int) -> None:
    """Events of so many groups, a hundred each, that tell of nothing new."""
    q.execute(
        "insert into faultline.group_events (queue, arrival, group_count, group_keys, priorities, run_ats)"
        " select 'default', true, 100, array_agg(%s::text), array_agg(0::smallint), array_agg(now())"
        " from generate_series(1, 100), generate_series(1, %s) as n (event) group by event",
        group,
        number // 100,
    )


def _put_to_expire(q: Session, number: int) -> None:
    jobs = json.dumps([{"task": "t", "group": f"e{nth}", "expires_seconds": 10} for nth in range(number)])
    q.execute("select from faultline.enqueue_many(%s::text)", jobs)


@probe("apply_group_events", "group_events", "claim_limited", "insert_group_events")
def permits_that_are_free_are_granted_whatever_came_in_before(sessions: Sessions) -> None:
    q = sessions.open()
    limit(q, concurrency=2)
    put_each(q, 5_000)
    for _ in range(3):
        held = take(q, 2)
        expect("granted", len(held), 2)
        expect("granted beyond the limit", take(q, 2), [])
        done(q, *held)
    expect_right_accounts(q)


@probe("insert_group_events", "group_events")
def an_event_of_permits_is_not_heard_behind_arrivals(sessions: Sessions) -> None:
    for freed in (1, -1):
        sessions.hand.execute("select faultline.insert_group_events('q', '{g}', array[%s::integer], null, null)", freed)
    expect("behind", sessions.hand.value("select bool_or(arrival) from faultline.group_events"), wanted=False)


@probe("apply_group_events", "claim_limited", "insert_group_events")
def what_comes_in_is_heard_though_many_permits_are_free(sessions: Sessions) -> None:
    """And nothing of it is lost where a claim has stopped in between."""
    q = sessions.open()
    limit(q, "*", concurrency=1)
    put_each(q, 1_600)
    done(q, *take(q, 300))
    put(q, "late", 1)
    found: list[str] = []
    for _ in range(20):
        held = take(q, 500)
        found += groups(held)
        done(q, *held)
    expect("granted", (len(found), len(set(found)), "late" in found), (1_301, 1_301, True))
    expect_right_accounts(q)


@probe("claim_limited", "apply_group_events")
def a_claim_hears_of_few_groups_where_nothing_may_be_granted(sessions: Sessions) -> None:
    q = sessions.open()
    limit(q, concurrency=1)
    put_each(q, 3_000)
    take(q, 1)
    expect("granted beyond the limit", take(q, 1), [])
    expect("known", q.value("select count(*) from faultline.groups"), 1_000)
    expect("comes at once", _next_turn(q) == "-infinity", wanted=False)


@probe("apply_until_room", "apply_group_events")
def a_claim_hears_few_events_where_nothing_may_be_granted(sessions: Sessions) -> None:
    q = sessions.open()
    limit(q, concurrency=1)
    limit(q, "*", concurrency=1)
    put(q, "full", 2)
    take(q)
    _tell_in_vain(q, "full", 5_000)
    expect("granted beyond the limit", take(q, 1), [])
    expect("heard all", q.value("select faultline.has_unapplied_events(s) from faultline.limited_queues s"), wanted=True)


@probe("next_claim_at", "claim_limited", "save_limited_queue", "limited_queues")
def a_claim_that_has_not_done_looking_says_so(sessions: Sessions) -> None:
    q = sessions.open()
    limit(q, "*", concurrency=1)
    put(q, "full", 2)
    held = take(q)
    _tell_in_vain(q, "full", 11_000)
    expect("granted", take(q, 1), [])
    expect("comes at once", _next_turn(q), "-infinity")
    expect("granted", take(q, 1), [])
    expect("comes when it is notified", _next_turn(q), None)
    done(q, *held)
    expect("granted", groups(take(q)), ["full"])


@probe("next_claim_at")
def who_claims_while_recover_holds_the_limits_comes_again_after_that(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    limit(q, concurrency=1)
    put(q, "a", 1)
    sessions.hand.execute("update faultline.settings set limits_held_until = faultline.clock() + interval '5 seconds'")
    expect("granted", take(q), [])
    seconds = q.value("select extract(epoch from faultline.next_claim_at('default') - faultline.clock())::integer")
    expect("seconds until the next claim", seconds, 5)


@probe("apply_events_to_groups")
def groups_whose_jobs_are_gone_before_claims_hear_of_them_are_not_looked_at(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    limit(q, "*", concurrency=1)
    put_each(q, 400)
    sessions.hand.execute("delete from faultline.open_jobs")
    _put_to_expire(q, 400)
    sessions.clock.advance(11)
    put(q, "fresh", 1)
    expect("granted", groups(take(q, 1)), ["fresh"])
    expect("known", q.execute("select group_key from faultline.groups"), [("fresh",)])


@probe("apply_events_to_groups", "recheck_groups")
def groups_without_a_token_hide_no_job_that_may_start(sessions: Sessions) -> None:
    q = sessions.open()
    limit(q, concurrency=100)
    limit(q, "*", rate=1, per=3600, burst=1)
    put_each(q, 300)
    for _ in range(3):
        done(q, *take(q, 100))
    limit(q, concurrency=1)
    put_each(q, 300)
    for rate, fresh in ((1, "fresh"), (2, "another")):
        limit(q, "*", rate=rate, per=3600, burst=1)
        while q.value("select faultline.has_unapplied_events(s) from faultline.limited_queues s"):
            q.execute("select faultline.maintain_limits()")
        expect("that claims would look at", q.value("select count(*) from faultline.groups where ready"), 0)
        put(q, fresh, 1)
        held = take(q, 1)
        expect(f"granted at {rate} an hour", groups(held), [fresh])
        done(q, *held)
    expect("without a token", take(q, 1), [])
    expect_right_accounts(q)


@probe("apply_events_to_groups")
def a_group_that_comes_in_without_a_token_starts_when_it_has_one(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    limit(q, "*", rate=1, per=3600, burst=1)
    put(q, "a", 1)
    done(q, *take(q))
    put(q, "a", 1)
    expect("without a token", take(q), [])
    sessions.clock.advance(3600)
    expect("with one", groups(take(q)), ["a"])


@probe("mark_groups_ready", "apply_until_room")
def groups_whose_jobs_are_locked_do_not_stop_the_others(sessions: Sessions) -> None:
    """A transaction that is open was answered with the queued job of each of them."""
    q, other = sessions.open(), sessions.open()
    sessions.clock.take()
    limit(q, concurrency=1)
    jobs = json.dumps([{"task": "t", "group": f"g{nth}", "unique": {"key": f"u{nth}"}} for nth in range(1_000)])
    q.execute("select from faultline.enqueue_many(%s::text)", jobs)
    other.begin()
    other.execute("select from faultline.enqueue_many(%s::text)", jobs)
    put(q, "z", 1)
    found: list[str] = []
    for _ in range(5):
        found += groups(take(q, 1))
        sessions.clock.advance(0.2)
    expect("granted", found, ["z"])
    other.rollback()


@probe("pick_permit_holders", "claim_limited")
def retried_jobs_whose_groups_have_no_token_are_put_off_together(sessions: Sessions) -> None:
    """By one claim of two jobs, which meets those that may start, too: one of a group, and no more than it was asked for."""
    q = sessions.open()
    sessions.clock.take()
    limit(q, "*", rate=1, per=3600, burst=1)
    for group in ("first", "last", "left"):
        limit(q, group, rate=1000, per=1, burst=1000)
        put(q, group, 2 if group == "first" else 1, max_attempts=9)
    put_each(q, 30)
    held = take(q)
    limit(q, "*", ordered=True)
    first, *twins = sorted((one for one in held if one.group == "first"), key=lambda one: one.job_id)
    others = [[one for one in held if str(one.group).startswith(group)] for group in ("g", "last", "left")]
    for ours in ([first], others[0], twins, *others[1:]):
        sessions.clock.advance(0.1)
        failed(q, *ours)
    found = take(q, 2)
    expect("granted", groups(found), ["first", "last"])
    due = q.execute(
        "select distinct group_key from faultline.open_jobs where state = 'queued' and next_run_at <= faultline.clock()"
    )
    expect("still due", due, [("left",)])
    expect_right_accounts(q)


@probe("pick_groups")
def a_claim_of_one_passes_thousands_of_groups_whose_jobs_are_gone(sessions: Sessions) -> None:
    """Not those whose jobs are there, nor those that hold a permit."""
    q = sessions.open()
    sessions.clock.take()
    limit(q, concurrency=2)
    limit(q, "*", concurrency=2)
    put(q, "holder", 2)
    held = take(q, 1)
    _put_to_expire(q, 3_000)
    put(q, "g7", 1)
    while q.value("select faultline.has_unapplied_events(s) from faultline.limited_queues s"):
        q.execute("select faultline.maintain_limits()")
    sessions.clock.advance(11)
    put(q, "fresh", 1)
    found: list[str] = []
    for _ in range(3):
        one = take(q, 1)
        found += groups(one)
        done(q, *one)
    expect("granted", sorted(found), ["fresh", "g7", "holder"])
    done(q, *held)
    expect_right_accounts(q)


@probe("pick_groups", "next_claim_at")
def a_claim_of_one_passes_hundreds_of_groups_whose_jobs_are_locked_and_then_lets_others_claim(sessions: Sessions) -> None:
    q, other = sessions.open(), sessions.open()
    sessions.clock.take()
    limit(q, concurrency=2)
    put_each(q, 2_000)
    other.begin()
    other.execute("select from faultline.open_jobs for update")
    for name in "yz":
        put(q, name, 1)
    while q.value("select faultline.has_unapplied_events(s) from faultline.limited_queues s"):
        q.execute("select faultline.maintain_limits()")
    expect("granted by the first claim", take(q, 1), [])
    passed = q.value("select count(*) from faultline.groups where not_before is not null")
    expect(f"passed by one claim ({passed})", passed in range(500, 1_000), wanted=True)
    expect("comes again at once", _next_turn(q), "-infinity")
    found = [one.group for _ in range(3) for one in take(q, 1)]
    expect("granted by three more", found, ["y"])
    other.rollback()
    expect_right_accounts(q)


@probe("apply_group_events", "apply_events_to_groups")
def who_is_heard_of_later_stands_behind_though_nothing_was_granted(sessions: Sessions) -> None:
    q = sessions.open()
    limit(q, concurrency=1)
    put(q, "first", 1)
    held = take(q, 1)
    for names in ("xyz", "a"):
        for name in names:
            put(q, name, 1)
        expect("granted beyond the limit", take(q, 1), [])
    order: list[str] = []
    for _ in range(4):
        done(q, *held)
        held = take(q, 1)
        order += groups(held)
    expect("the last", order[-1], "a")


@probe("maintain_queue", "maintain_limits")
def turns_are_brought_back_before_the_steps_between_them_are_lost(sessions: Sessions) -> None:
    q = sessions.open()
    limit(q, concurrency=1)
    put(q, "y", 1)
    done(q, *take(q, 1))
    sessions.hand.execute(
        "update faultline.limited_queues"
        " set virtual_time = virtual_time + 2e10, arrival_virtual_time = arrival_virtual_time + 2e10"
    )
    sessions.hand.execute("update faultline.groups set virtual_time = virtual_time + 2e10")
    q.execute("select faultline.maintain_limits()")
    put(q, "y", 1)
    held = take(q, 1)
    for name in "za":
        put(q, name, 1)
        expect("granted beyond the limit", take(q, 1), [])
    done(q, *held)
    expect("granted", groups(take(q, 1)), ["z"])


@probe("limit_queue", "move_due_jobs_into_groups")
def jobs_that_were_enqueued_before_a_declaration_are_not_overtaken(sessions: Sessions) -> None:
    q = sessions.open()
    put(q, "a", 1_100)
    before = put(q, "b", 2)
    declare(q, each_group={"ordered": True})
    put(q, "b", 2)
    found = [one.job_id for _ in range(2) for one in _run(q) if one.group == "b"]
    expect("the first of the group", found, sorted(before))


def _run(q: Session) -> list[Any]:
    held = take(q, 10)
    done(q, *held)
    return held
