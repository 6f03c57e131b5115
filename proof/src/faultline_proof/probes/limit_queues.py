"""A queue with limits: what is declared, when to claim again, and who is woken."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from faultline_proof.probes.limit_stage import done, expect_right_accounts, failed, groups, limit, put, take
from faultline_proof.probes.probe import expect, probe, refused

if TYPE_CHECKING:
    from faultline_proof.sessions import Session, Sessions


def declare(q: Session, **declared: Any) -> bool:
    changed: bool = q.value("select faultline.declare_queue('default', %s::jsonb)", json.dumps(declared))
    return changed


@probe("declare_queue", "limit_queue")
def a_declaration_is_written_once_and_people_win(sessions: Sessions) -> None:
    q = sessions.open()
    expect("nothing to declare", declare(q), wanted=False)
    expect("a queue of it", q.value("select count(*) from faultline.queues"), 0)
    words: dict[str, Any] = {"queue": {"concurrency": 3}, "each_group": {"concurrency": 2}, "groups": {"a": {"weight": 2}}}
    expect("the first time", declare(q, **words), wanted=True)
    expect("the second time", declare(q, **words), wanted=False)
    limit(q, concurrency=1)
    expect("after a person", declare(q, **words), wanted=False)
    put(q, "a", 5)
    expect("granted under the person's limit", len(take(q)), 1)
    q.execute("select faultline.reset_limit('default', '', 'ada', 'enough')")
    expect("granted after the reset", len(take(q)), 1)
    words["groups"] = {}
    expect("another declaration", declare(q, **words), wanted=True)
    expect("what is stored", q.execute("select group_key from faultline.limits order by 1"), [("",), ("*",)])
    changes = q.execute(
        "select detail ->> 'group', detail ->> 'by' from faultline.journal where event = 'limit_changed' order by id"
    )
    expect("on record", [who for who, by in changes if by == "ada"], [""])
    expect("changes on record", len(changes), 6)


@probe("checked_limit", "declare_queue", "limit_queue", "limited_one")
def a_limit_that_makes_no_sense_is_refused(sessions: Sessions) -> None:
    q = sessions.open()
    for fields, why in (
        ({"concurrency": 0}, "pause it"),
        ({"concurrency": 1.5}, "whole number"),
        ({"concurrency": "2"}, "must be a number"),
        ({"rate": 0}, "from 0.001"),
        ({"rate": 1, "per": 0}, "greater than 0"),
        ({"rate": 1, "per": 31536001}, "at most 31536000"),
        ({"rate": 1, "burst": 0.5}, "from 1 to"),
        ({"per": 5}, 'belong to a "rate"'),
        ({"speed": 1}, "no limit has a field"),
        ({"ordered": 1}, "true or false"),
        ({"ordered": True, "concurrency": 2}, "one job at a time"),
        ({"weight": 0}, "from 0.001 to 1000"),
        ({"weight": 1001}, "from 0.001 to 1000"),
    ):
        with refused(q, "FL005", why, what=str(fields)):
            limit(q, "g", **fields)
    for field in ("weight", "ordered"):
        with refused(q, "FL005", "is for groups"):
            limit(q, "", "default", **{field: 1})
    with refused(q, "FL005", "control characters"):
        limit(q, "a\tb", concurrency=1)
    with refused(q, "FL005", "1 to 100 characters"):
        limit(q, "", queue="", concurrency=1)
    with refused(q, "FL005", "must be a JSON object"):
        q.execute("select faultline.declare_queue('default', '[]')")


@probe("lock_limited_queue")
def a_claim_that_waited_leaves_its_callers_patience_as_it_was(sessions: Sessions) -> None:
    q, other = sessions.open(), sessions.open()
    limit(q, concurrency=5)
    put(q, "a", 5)
    patience = other.value("show lock_timeout")
    other.begin()
    q.begin()
    take(q, 1)
    answer = other.start(take)
    sessions.wait_until_blocked(other, answer)
    q.commit()
    answer.result()
    expect("its patience", other.value("show lock_timeout"), patience)
    other.commit()


@probe("next_claim_at", "next_token", "queue_room", "has_ready_group", "due")
def the_next_turn_is_when_something_may_be_granted(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()

    def wait() -> float | None:
        found = q.value("select extract(epoch from faultline.next_claim_at('default') - faultline.clock())::float8")
        return None if found is None else round(found, 3)

    expect("of a queue without limits", wait(), None)
    limit(q, "*", concurrency=1)
    expect("of an empty one", wait(), None)
    put(q, "a", 2)
    expect("when something has come", wait(), 0)
    (held,) = take(q)
    expect("when a permit is missing", wait(), None)
    done(q, held)
    expect("when one is free", wait(), 0)
    take(q)
    put(q, "b", 1, delay_seconds=30)
    expect("when one is delayed", wait(), 30)
    limit(q, "*", concurrency=None, rate=1, per=10, burst=1)
    put(q, "c", 2)
    take(q)
    expect("when a token is missing", wait(), 10)
    expect("due", q.execute("select faultline.due('{default}')"), [])
    sessions.clock.advance(10)
    expect("due then", q.execute("select faultline.due('{default}')"), [("default",)])
    take(q)
    limit(q, rate=1, per=100, burst=1)
    put(q, "d", 2)
    take(q)
    expect("when a token of the queue is missing", wait(), 20)
    sessions.clock.advance(30)
    expect("of one that is to go to its group", wait(), -10)
    take(q)
    expect("then", wait(), 70)


@probe("limit_queue", "maintain_queue", "maintain_limits")
def a_row_of_a_queue_that_was_lost_is_written_again_with_what_its_jobs_hold(sessions: Sessions) -> None:
    """Deleted by hand, or not restored. By upkeep, and by who changes a limit."""
    q = sessions.open()
    sessions.clock.take()
    for name, restore in (
        ("upkeep", lambda: q.execute("select faultline.maintain_limits()")),
        ("change", lambda: limit(q, "*", queue="change", weight=2)),
        ("recount", lambda: q.value("select faultline.recount('recount')")),
    ):
        limit(q, queue=name, concurrency=3, rate=1, burst=10)
        put(q, "a", 9, queue=name)
        expect("granted", len(take(q, 2, queue=name)), 2)
        sessions.hand.execute("delete from faultline.limited_queues where queue = %s", name)
        expect("broken invariants", q.broken_invariants(), ["a_limited_queue_has_its_row"])
        expect("granted without the row", take(q, queue=name), [])
        restore()
        expect_right_accounts(q)
        expect("granted without a token", take(q, queue=name), [])
        sessions.clock.advance(10)
        expect("granted then", len(take(q, queue=name)), 1)
        expect_right_accounts(q)


@probe("limit_queue")
def groups_keep_their_turns_when_the_row_of_their_queue_is_written_again(sessions: Sessions) -> None:
    q = sessions.open()
    limit(q, concurrency=1)
    put(q, "a", 9)
    put(q, "b", 9)
    for _ in range(6):
        done(q, *take(q, 1))
    sessions.hand.execute("delete from faultline.limited_queues")
    q.execute("select faultline.maintain_limits()")
    put(q, "new", 1)
    found: list[str] = []
    for _ in range(3):
        held = take(q, 1)
        found += groups(held)
        done(q, *held)
    expect("granted", found, ["a", "b", "new"])


@probe("maintain_queue", "maintain_limits")
def upkeep_does_not_wait_for_who_changes_a_queue_without_its_row(sessions: Sessions) -> None:
    q, operator = sessions.open(), sessions.open()
    limit(q, concurrency=1)
    sessions.hand.execute("delete from faultline.limited_queues")
    operator.begin()
    limit(operator, concurrency=2)
    sessions.at_once(q, lambda own: own.execute("select faultline.maintain_limits()"))
    operator.commit()
    expect_right_accounts(q)


@probe("free_permits", "free_ended", "wake_for_free_permit")
def who_waits_for_a_permit_is_woken_when_it_is_free(sessions: Sessions) -> None:
    q = sessions.open()
    limit(q, "*", concurrency=1)
    q.heartbeat("sleeper", sleeping=["default"])
    q.execute("listen faultline")
    put(q, "a", 2)
    put(q, "b", 1)
    held = {one.group: one for one in take(q)}
    q.notices()
    done(q, held["b"])
    expect("woken for a group in which nobody waits", q.notices(), [])
    done(q, held["a"])
    expect("woken for one in which somebody does", ["sleeper" in notice for notice in q.notices()], [True])
    put(q, "a", 1)
    (held_again,) = take(q)
    q.notices()
    failed(q, held_again, then="fail")
    expect("woken by another ending", ["sleeper" in notice for notice in q.notices()], [True])
