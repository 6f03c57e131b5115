"""What attacks on the first draft of limits found, one story each: the number is that of the finding."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
from psycopg.conninfo import make_conninfo

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
from faultline_proof.probes.probe import expect, probe, refused

if TYPE_CHECKING:
    from faultline_proof.sessions import Sessions

#: Of 100 jobs, what a group of weight 4 beside one of weight 1 gets.
_PART = 80


@probe("move_due_jobs_into_groups", "claim_limited")
def finding_01_due_delayed_jobs_of_a_full_group_stop_nobody(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    limit(q, "full", concurrency=1)
    put(q, "full", 1)
    take(q)
    put(q, "full", 1500, delay_seconds=1)
    put(q, None, 1)
    put(q, "other", 1, delay_seconds=1)
    sessions.clock.advance(2)
    waiting = "select count(*) from faultline.open_jobs where in_group"
    found = [one.group for one in take(q, 1)]
    expect("gone to their groups by one claim", q.value(waiting), 1000)
    found += [one.group for _ in range(2) for one in take(q, 1)]
    expect("granted by three claims of one", sorted(found, key=str), [None, "other"])
    expect("of the full group, gone to their group", q.value(f"{waiting} and group_key = 'full'"), 1500)


@probe("pick_permit_holders", "claim_limited")
def finding_02_a_retried_job_of_a_group_does_not_wait_behind_jobs_of_no_group(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    limit(q, "strict", ordered=True)
    put(q, None, 200)
    put(q, "strict", 2)
    put(q, "other", 1, delay_seconds=1)
    (held,) = [one for one in take(q, 4) if one.group == "strict"]
    failed(q, held, delay=1)
    sessions.clock.advance(2)
    granted = take(q, 4)
    expect("granted at once", held.job_id in [one.job_id for one in granted], wanted=True)
    expect("and with it", "other" in groups(granted), wanted=True)


@probe("write_limit", "recheck_groups")
def finding_03_a_limit_that_is_raised_lets_waiting_jobs_run_at_once(sessions: Sessions) -> None:
    q = sessions.open()
    limit(q, "a", concurrency=1)
    put(q, "a", 5)
    take(q)
    expect("granted before", take(q), [])
    limit(q, "a", concurrency=3)
    expect("granted after", len(take(q)), 2)
    with refused(q, "FL005", "to stop a queue, pause it"):
        limit(q, "a", concurrency=0)


@probe("write_limit", "recheck_groups")
def finding_04_a_rate_that_is_raised_or_taken_away_counts_at_once(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    limit(q, "*", rate=1, per=3600)
    put(q, "a", 30)
    put(q, "b", 5)
    expect("granted", groups(take(q)), ["a", "b"])
    expect("granted beside them", take(q), [])
    limit(q, "a", rate=1000, per=1, burst=1000)
    sessions.clock.advance(0.01)
    expect("granted at the new rate", groups(take(q)), ["a"] * 10)
    limit(q, "b", rate=None)
    expect("granted without a rate", groups([one for one in take(q) if one.group == "b"]), ["b"] * 4)


@probe("pick_groups", "apply_group_events")
def finding_05_a_group_that_is_empty_has_no_turn(sessions: Sessions) -> None:
    q = sessions.open()
    limit(q, "*", concurrency=1)
    for n in range(30):
        put(q, f"g{n}", 1)
    done(q, *take(q))
    take(q, 1)
    expect("groups with a turn", q.value("select count(*) from faultline.groups where ready"), 0)
    put(q, "new", 1)
    expect("granted by one claim", groups(take(q, 1)), ["new"])


@probe("claim_limited", "pick_ungrouped")
def finding_06_jobs_of_no_group_do_not_starve_by_bounds(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    limit(q, concurrency=1000)
    old = put(q, None, 1)
    sessions.clock.advance(60)
    put(q, "a", 1)
    found = q.execute("select job_id from faultline.claim('default', 'w/x', 10, '{0}', array[faultline.clock()])")
    expect("the old one is granted", (old[0],) in found, wanted=True)


@probe("apply_group_events", "cluster")
def finding_07_events_are_heard_after_a_restore_into_another_cluster(sessions: Sessions) -> None:
    q = sessions.open()
    limit(q, "a", concurrency=1)
    put(q, "a", 2)
    (held,) = take(q)
    # As a dump of another cluster has it: what it has seen lies in the past of these numbers, and says nothing about them.
    sessions.hand.execute("update faultline.limited_queues set cluster = 'another', seen_to = '0', seen_open = '{}'")
    done(q, held)
    sessions.hand.execute(
        "update faultline.limited_queues"
        " set cluster = 'another', seen_to = pg_snapshot_xmax(pg_current_snapshot()), seen_open = '{}'"
    )
    expect("granted in the new cluster", groups(take(q)), ["a"])
    expect_right_accounts(q)


@probe("apply_group_events", "maintain_queue", "maintain_limits")
def finding_07_an_event_that_was_passed_over_is_heard_within_a_minute(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    limit(q, "a", concurrency=1)
    put(q, "a", 2)
    (held,) = take(q)
    done(q, held)
    sessions.hand.execute(
        (
            "update faultline.limited_queues set seen_to = pg_snapshot_xmax(pg_current_snapshot()), seen_open = '{}',"
            " all_events_applied_at = %s"
        ),
        q.value("select faultline.clock()"),
    )
    expect("granted", take(q), [])
    q.execute("select faultline.maintain_limits()")
    expect("granted before the minute", take(q), [])
    sessions.clock.advance(61)
    q.execute("select faultline.maintain_limits()")
    expect("granted after the minute", groups(take(q)), ["a"])


@probe("refill_moment", "refilled", "pick_groups")
def finding_08_a_clock_that_was_ahead_stops_neither_turns_nor_rates(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    limit(q, rate=100)
    for group in "abcd":
        put(q, group, 100)
    sessions.clock.advance(86400)
    take(q, 1)
    sessions.clock.advance(-86400)
    take(q, 1)
    sessions.clock.advance(1)
    found = [one.group for _ in range(40) for one in take(q, 1)]
    expect("granted to each", [found.count(group) for group in "abcd"], [10, 10, 10, 10])


@probe("pick_permit_holders")
def finding_10_a_retry_in_order_takes_a_token_of_its_group(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    limit(q, "a", ordered=True, rate=1, burst=1)
    put(q, "a", 1, max_attempts=1000)
    starts = 0
    for _ in range(20):
        for held in take(q):
            starts += 1
            failed(q, held, delay=0)
        sessions.clock.advance(0.1)
    expect("starts in two seconds", starts, 2)
    turn = q.value("select extract(epoch from faultline.next_claim_at('default') - faultline.clock())::float8")
    expect("the next turn is when there is a token", 0 <= turn <= 1, wanted=True)


@probe("free_permits", "inherit_group")
def finding_11_a_child_in_its_parents_strict_group_is_refused(sessions: Sessions) -> None:
    q = sessions.open()
    limit(q, "strict", ordered=True)
    put(q, "strict", 2)
    put(q, "loose", 1)
    held = {one.group: one for one in take(q)}
    for group in ("strict", "loose"):
        parent = held[group]
        q.execute(
            "select faultline.spawn(%s, %s, %s, '1', 'children', 'c', null, 'raise', 1, 0, %s)",
            parent.job_id, parent.token, parent.owner, '[{"task": "child"}]',
        )  # fmt: skip
    with refused(q, "FL005", "would wait for itself"):
        q.execute(
            "select faultline.spawn(%s, %s, %s, '2', 'children', 'c', null, 'raise', 1, 0, %s)",
            held["strict"].job_id, held["strict"].token, held["strict"].owner, '[{"task": "child", "group": "strict"}]',
        )  # fmt: skip
    children = q.execute("select group_key from faultline.open_jobs where task = 'child' order by 1")
    expect("groups of the children", children, [("loose",), (None,)])
    for group in ("strict", "loose"):
        parent = held[group]
        q.execute(
            "select faultline.suspend(array[%s::uuid], array[%s::bigint], array[%s], %s::jsonb)",
            parent.job_id, parent.token, parent.owner, '[[{"number": "1", "kind": "children", "name": "c"}]]',
        )  # fmt: skip
    expect("permits kept", q.execute("select state from faultline.open_jobs where has_permit"), [("queued",)])
    expect("granted while the strict one waits", groups(take(q)), ["None", "loose"])
    expect_right_accounts(q)


@probe("claim_limited", "write_limit", "recheck_groups")
def finding_12_a_limit_that_comes_back_counts_what_runs(sessions: Sessions) -> None:
    q = sessions.open()
    limit(q, "a", concurrency=1)
    limit(q, concurrency=2)
    put(q, "a", 10)
    take(q)
    for whose in ("a", ""):
        limit(q, whose, concurrency=None)
    take(q, 3)
    limit(q, "a", concurrency=4)
    expect("granted", take(q), [])
    limit(q, "a", concurrency=None)
    limit(q, concurrency=4)
    expect("granted by the queue", take(q), [])
    expect("running", running(q), 4)


@probe("permit_running_jobs", "limit_queue")
def finding_12_a_first_limit_counts_what_runs(sessions: Sessions) -> None:
    q, user = sessions.open(), sessions.open()
    sessions.clock.take()
    put(q, "a", 10)
    held = take(q, 3)
    user.begin()
    user.execute("select from faultline.open_jobs where id = %s for update", held[0].job_id)
    limit(q, concurrency=4)
    limit(q, "a", concurrency=3)
    expect("granted beside one that cannot be counted now", len(take(q)), 1)
    user.rollback()
    sessions.clock.advance(61)
    q.execute("select faultline.maintain_limits()")
    expect("counted", q.value("select count(*) from faultline.open_jobs where has_permit"), 4)
    done(q, held[1])
    expect("granted for one that is done", take(q), [])
    expect_right_accounts(q)


@probe("parse_new_jobs", "insert_arrival_events", "insert_or_find_jobs")
def finding_13_jobs_of_groups_run_whatever_their_queue_and_however_they_came(sessions: Sessions) -> None:
    q, other = sessions.open(), sessions.open()
    put(q, "a", 1, idempotency_key="k")
    expect("in a queue without limits", groups(take(q)), ["a"])
    limit(q, concurrency=10)
    put(q, "a", 1, idempotency_key="k2")
    q.execute(
        "select faultline.enqueue_many(%s::text)",
        '[{"task": "t", "group": "b"}, {"task": "t", "group": "b", "queue": "plain"}]',
    )
    expect("of the queue", groups(take(q)), ["a", "b"])
    expect("of the other", groups(take(q, queue="plain")), ["b"])
    q.begin()
    put(q, "x", 1)
    expect("an enqueue beside it", len(sessions.at_once(other, lambda s: put(s, "y", 1))), 1)
    q.commit()


@probe("maintain_limits", "maintain_queue")
def finding_15_groups_that_are_empty_are_forgotten_a_few_at_a_time(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    limit(q, "*", concurrency=1)
    limit(q, "slow", rate=1, per=60, burst=1)
    for n in range(12):
        put(q, f"g{n}", 1)
    put(q, "slow", 1)
    held = take(q)
    done(q, *(one for one in held if one.group != "g0"))
    q.execute("select faultline.maintain_limits()")
    sessions.clock.advance(11)
    expect("forgotten at most", q.value("select faultline.maintain_limits(5)"), 5)
    expect("then the rest", q.value("select faultline.maintain_limits()"), 6)
    left = q.execute("select group_key from faultline.groups order by 1")
    expect("kept: one that runs, one whose token is due", left, [("g0",), ("slow",)])


@probe("pick_groups", "weight_of")
def finding_16_weights_weigh_in_claims_of_any_size(sessions: Sessions) -> None:
    q = sessions.open()
    limit(q, "a", weight=4)
    for size in (1, 5, 25):
        put(q, "a", 200)
        put(q, "b", 200)
        found: list[str] = []
        while len(found) < _PART + _PART // 4:
            held = take(q, size)
            found += groups(held)
            done(q, *held)
        expect(f"of 100 by {size}, off by", abs(found[:100].count("a") - _PART) <= _PART // 20, wanted=True)


@probe("pick_groups", "apply_group_events")
def finding_17_a_group_of_long_jobs_does_not_take_all_slots(sessions: Sessions) -> None:
    q = sessions.open()
    limit(q, concurrency=4)
    put(q, "long", 50)
    put(q, "short", 50)
    take(q, 4)
    for _ in range(5):
        short = q.execute(
            "select id, fencing_token, lease_owner from faultline.open_jobs where group_key = 'short' and state = 'running'"
        )
        q.execute("select faultline.complete(array[%s::uuid], array[%s::bigint], array[%s])", *short[0])
        expect("granted", groups(take(q)), ["short"])


@probe("apply_group_events")
def finding_18_one_wrong_count_does_not_stop_the_queue(sessions: Sessions) -> None:
    q = sessions.open()
    limit(q, "*", concurrency=2)
    put(q, "a", 3)
    put(q, "b", 3)
    take(q, 2)
    sessions.hand.execute(
        "insert into faultline.group_events (queue, freed, group_count, group_keys, freed_groups)"
        " values ('default', 7, 1, '{a}', '{7}')"
    )
    expect("granted", "b" in groups(take(q)), wanted=True)
    expect("held by none", q.value("select count(*) from faultline.groups where holding < 0"), 0)
    counted = q.value("select count(*) from faultline.journal where event = 'permits_recounted'")
    expect("on record", counted >= 1, wanted=True)
    expect("wrong counts", q.value("select faultline.recount()") >= 1, wanted=True)
    expect_right_accounts(q)
    expect("wrong counts then", q.value("select faultline.recount()"), 0)


@probe("claim_limited", "lock_limited_queue")
def finding_19_a_claim_that_is_left_open_ends_by_itself_and_others_go_away(sessions: Sessions) -> None:
    q, other = sessions.open(), sessions.open()
    limit(q, concurrency=5)
    put(q, "a", 5)
    q.begin()
    take(q, 1)
    expect("its patience", q.value("show idle_in_transaction_session_timeout"), "5s")
    expect("granted to another meanwhile", sessions.at_once(other, lambda s: take(s, 1)), [])
    expect("its patience", other.value("show lock_timeout"), "5s")
    q.commit()
    expect("granted to another then", len(take(other, 1)), 1)


@probe("claim", "read_committed")
def finding_20_a_claim_under_an_old_snapshot_is_refused(sessions: Sessions) -> None:
    """Also under one that is older than the first limit of the queue: it shows a queue without limits."""
    q, operator = sessions.open(), sessions.open()
    put(q, None, 5)
    for level in ("repeatable read", "serializable"):
        q.begin(level)
        q.execute("select from faultline.queues")
        limit(operator, concurrency=1)
        with refused(q, "FL005", "claim is possible in READ COMMITTED transactions only"):
            take(q)
        q.rollback()
        sessions.hand.execute("delete from faultline.limits")
        sessions.hand.execute("delete from faultline.limited_queues")
        sessions.hand.execute("delete from faultline.queues")


@probe("group_limit", "pick_groups", "free_permits")
def finding_21_a_limit_of_one_group_keeps_what_it_does_not_name(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    limit(q, "*", ordered=True)
    limit(q, "a", weight=2)
    put(q, "a", 2)
    (held,) = take(q)
    failed(q, held, delay=5)
    expect("granted while the first waits", take(q), [])
    sessions.clock.advance(6)
    expect("granted then", [one.job_id for one in take(q)], [held.job_id])


@probe("move_due_jobs_into_groups")
def finding_23_a_job_whose_time_is_moved_waits_for_it(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    limit(q, "*", concurrency=1)
    (job_id,) = put(q, "a", 1)
    q.execute(
        "update faultline.open_jobs set in_group = null, group_at = null,"
        " next_run_at = faultline.clock() + interval '1 hour' where id = %s",
        job_id,
    )
    expect("granted before", take(q), [])
    sessions.clock.advance(3601)
    expect("granted then", [one.job_id for one in take(q)], [job_id])


@probe("pick_groups", "pick_ungrouped", "has_due_ungrouped")
def finding_23_a_job_that_has_expired_is_not_granted(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    limit(q, "*", concurrency=1)
    put(q, "a", 1, expires_seconds=10)
    put(q, None, 1, expires_seconds=10)
    sessions.clock.advance(11)
    (late,) = put(q, "a", 1)
    expect("granted", [one.job_id for one in take(q)], [late])


@probe("open_xids", "apply_group_events")
def finding_24_open_transactions_of_other_databases_are_not_waited_for(sessions: Sessions) -> None:
    q = sessions.open()
    snapshot = "select faultline.open_xids(%s::pg_snapshot, %s::xid8)::text[]"
    with psycopg.connect(make_conninfo(q.connection.info.dsn, dbname="postgres"), autocommit=True) as elsewhere:
        elsewhere.execute("begin")
        (xid,) = elsewhere.execute("select pg_current_xact_id()::text").fetchone() or ("",)
        above = str(int(xid) + 1)
        for others, left_out in ((10, False), (60, True)):
            # From before the cluster's first day: nobody has them now, whatever runs beside.
            numbers = [str(3 + n) for n in range(others)]
            found = q.value(snapshot, f"3:{above}:{','.join([*numbers, xid])}", above)
            expect(f"of {others}: left out", xid not in found, left_out)
            expect("the others", set(numbers) <= set(found), wanted=True)
        elsewhere.execute("rollback")
