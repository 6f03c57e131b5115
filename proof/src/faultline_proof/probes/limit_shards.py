"""A queue in several shards: together they grant what one would, and none of them forgets anything."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from faultline_proof.probes.limit_stage import done, expect_right_accounts, failed, groups, limit, put, running, take
from faultline_proof.probes.probe import expect, probe, refused

if TYPE_CHECKING:
    from faultline_proof.sessions import Session, Sessions


def declare(q: Session, shards: int | None = None, **declared: Any) -> bool:
    changed: bool = q.value("select faultline.declare_queue('default', %s::jsonb, %s)", json.dumps(declared), shards)
    return changed


@probe("declare_queue", "limit_queue", "reshard")
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
    with refused(q, "FL005", "1 to 64"):
        declare(q, 65)


@probe("claim_limited", "lock_shard", "shard_room")
def shards_grant_no_more_together_than_the_queue_may(sessions: Sessions) -> None:
    q = sessions.open()
    declare(q, 4, queue={"concurrency": 10})
    for n in range(8):
        put(q, f"g{n}", 5)
    put(q, None, 10)
    held = take(q)
    expect("granted", len(held), 10)
    expect("granted beside them", take(q), [])
    done(q, *held[:5])
    expect("granted for five that are done", len(take(q)), 5)
    expect("running", running(q), 10)
    expect_right_accounts(q)


@probe("check_shards", "declare_queue", "set_limit", "shard_room")
def shards_start_no_more_together_than_the_burst_of_the_queue(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    for n in range(16):
        put(q, f"g{n}", 2)
    slow = {"rate": 1, "per": 60, "burst": 4}
    with refused(q, "FL005", "8 shards and a rate with a burst of 4"):
        declare(q, 8, queue=slow)
    expect("a queue of it", q.value("select count(*) from faultline.queues where limited"), 0)
    declare(q, 4, queue=slow)
    expect("granted at once", len(take(q)), 4)
    with refused(q, "FL005", "4 shards and a rate with a burst of 3"):
        limit(q, rate=1, per=60, burst=3)
    with refused(q, "FL005", "8 shards"):
        declare(q, 8, queue=slow)
    limit(q, rate=1, per=60, burst=8)
    with refused(q, "FL005", "8 shards and a rate with a burst of 4"):
        declare(q, 8, queue=slow)
    expect("with more of both", declare(q, 8, queue=slow | {"burst": 8}), wanted=True)
    q.execute("select faultline.reset_limit('default', '')")
    expect("without a rate", declare(q, 16, queue={"concurrency": 5}), wanted=True)


@probe("lock_shard", "claim_limited")
def finding_14_a_claim_goes_past_a_shard_that_somebody_holds(sessions: Sessions) -> None:
    q, other = sessions.open(), sessions.open()
    declare(q, 2, each_group={"concurrency": 5})
    for n in range(8):
        put(q, f"g{n}", 1)
    q.begin()
    q.execute("select from faultline.shards where shard = 0 for update")
    found = sessions.at_once(other, take)
    expect("granted of the other shard", 0 < len(found) < len("12345678"), wanted=True)
    q.rollback()
    expect("granted of both", len(found) + len(take(q)), 8)
    expect_right_accounts(q)


@probe("claim_limited")
def a_claim_of_several_shards_takes_no_more_than_it_was_asked_for(sessions: Sessions) -> None:
    q = sessions.open()
    declare(q, 4, queue={"concurrency": 40})
    for n in range(12):
        put(q, f"g{n}", 3)
    expect("granted", len(take(q, 3)), 3)
    expect("running", running(q), 3)


@probe("lock_shard")
def a_claim_that_waited_for_its_shard_leaves_its_callers_patience_as_it_was(sessions: Sessions) -> None:
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


@probe("rebalance_permits", "maintain_queue", "shard_room")
def permits_that_a_shard_does_not_use_are_lent(sessions: Sessions) -> None:
    q = sessions.open()
    declare(q, 4, queue={"concurrency": 8})
    put(q, "one", 20)
    held = take(q)
    expect("granted of its own", len(held), 2)
    q.execute("select faultline.maintain_limits()")
    held += take(q)
    expect("granted with what was lent", len(held), 8)
    expect("granted beside them", take(q), [])
    done(q, *held)
    for n in range(30):
        put(q, f"g{n}", 2)
    take(q)
    q.execute("select faultline.maintain_limits()")
    take(q)
    expect("running", running(q), 8)
    expect_right_accounts(q)


@probe("reshard", "rewrite_events_of_old_shards", "free_permits", "apply_group_events", "limit_queue", "recount_queue")
def the_number_of_shards_may_change_while_jobs_run(sessions: Sessions) -> None:
    q, late = sessions.open(), sessions.open()
    sessions.clock.take()
    declare(q, 1, queue={"concurrency": 12}, each_group={"concurrency": 2})
    for n in range(6):
        put(q, f"g{n}", 12)
    held = take(q)
    expect("granted", len(held), 12)
    for shards in (4, 2, 1):
        late.begin()
        done(late, held.pop())
        done(q, held.pop())
        expect("changed", declare(q, shards, queue={"concurrency": 12}, each_group={"concurrency": 2}), wanted=True)
        late.commit()
        expect_right_accounts(q)
        for _ in range(3):
            sessions.clock.advance(61)
            q.execute("select faultline.maintain_limits()")
            held += take(q)
        expect(f"running in {shards} shards", running(q), 12)
        most = q.value(
            "select max(n) from (select count(*) n from faultline.open_jobs where state = 'running' group by group_key) g"
        )
        expect("of one group", most, 2)
        expect_right_accounts(q)
    done(q, *held)
    rest = take(q)
    expect("the rest", groups(rest), groups(rest))
    expect_right_accounts(q)


@probe("next_claim_at", "next_token", "due")
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


@probe("free_ended", "complete")
def a_permit_of_the_queue_is_free_in_the_shard_that_counted_it(sessions: Sessions) -> None:
    q = sessions.open()
    declare(q, 1, queue={"concurrency": 6})
    for n in range(6):
        put(q, f"g{n}", 2)
    held = take(q)
    expect("granted by one shard", len(held), 6)
    declare(q, 4, queue={"concurrency": 6})
    done(q, *held)
    expect_right_accounts(q)
