"""What limits, expiry and schedules read: what is granted, due or over, whatever else waits. Counted in rows read."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

from faultline.store.verbs import schedules
from faultline_proof.probes.flow_plans import rows_read
from faultline_proof.probes.limit_stage import done, failed, groups, limit, put, put_each, take
from faultline_proof.probes.probe import PROBES, Probe, expect, probe

if TYPE_CHECKING:
    from collections.abc import Callable

    from faultline_proof.sessions import Session, Sessions

#: So many rows of each kind come once the session has made its plans,
_BACKLOG = 1_000
#: and so many of them may be looked at for one job.
_FEW = 150
#: PostgreSQL makes a new plan for each of the first five calls, and may then keep one.
_CALLS_BEFORE = 6
_NEXT_TURN = "select faultline.next_claim_at('default')"
_EXPIRES = "select faultline.expire(10)"


def _reads_few(q: Session, what: str, call: Callable[[], object]) -> None:
    before = rows_read(q)
    call()
    read = rows_read(q) - before
    if read > _FEW:
        raise AssertionError(f"{what} read {read} rows beside a backlog of {_BACKLOG}")


def _put_each(q: Session, names: list[str]) -> None:
    jobs = json.dumps([{"task": "t", "group": name} for name in names])
    q.execute("select count(*) from faultline.enqueue_many(%s::text)", jobs)


_TABLES = ("open_jobs", "groups", "group_events", "limited_queues", "limits", "queues")


def _begin_small(sessions: Sessions) -> None:
    """Tables as they are on the first day, with statistics that say so."""
    sessions.hand.execute(f"truncate {', '.join(f'faultline.{table}' for table in _TABLES)}")
    limit(sessions.hand, "*", concurrency=1)
    put(sessions.hand, "first", 1)
    for table in _TABLES:
        sessions.hand.execute(f"vacuum analyze faultline.{table}")


def _begin_emptied(sessions: Sessions) -> None:
    """Tables that were full and are empty, with statistics that say: many pages, no rows. Believed, any scan is cheap."""
    _begin_small(sessions)
    put(sessions.hand, None, _BACKLOG)
    _put_each(sessions.hand, [f"g{n}" for n in range(_BACKLOG)])
    take(sessions.hand, 10 * _BACKLOG)
    for table in _TABLES:
        sessions.hand.execute(f"delete from faultline.{table}")
        sessions.hand.execute(f"vacuum analyze faultline.{table}")


def _make_plans(q: Session) -> None:
    """Call everything so often that PostgreSQL keeps a plan. The first ones that this session makes are those of upkeep."""
    with q.unsaved():
        for _ in range(_CALLS_BEFORE):
            put(q, "folded", 1)
            q.execute("select faultline.maintain_limits()")
        for _ in range(_CALLS_BEFORE):
            for group in ("a", "strict", None):
                put(q, group, 1)
            held = take(q, 5)
            done(q, *(one for one in held if one.group != "strict"))
            failed(q, *(one for one in held if one.group == "strict"))
            done(q, *take(q, 5))
            q.execute(_NEXT_TURN)


def _fill_tables(hand: Session) -> None:
    """Limits of other groups, events of another queue, and groups that wait for a time."""
    hand.execute(
        "insert into faultline.limits (queue, group_key) select 'default', 'x' || n from generate_series(1, %s) n", _BACKLOG
    )
    hand.execute("insert into faultline.group_events (queue) select 'other' from generate_series(1, %s)", _BACKLOG)
    hand.execute(
        "insert into faultline.groups (group_key, queue, changed_second, has_waiting, not_before) select 'w' || n,"
        " 'default', 0,"
        " true, faultline.clock() + interval '1 hour' from generate_series(1, %s) n",
        _BACKLOG,
    )


def _claims_read_what_they_grant(sessions: Sessions, *, begin: Callable[[Sessions], None]) -> None:
    q, filler = sessions.open(), sessions.open()
    begin(sessions)
    # What is deleted from now on stays, and its entries, too.
    late = sessions.open()
    late.begin()
    late.execute("select pg_current_xact_id()")
    sessions.clock.take()
    limit(q, "*", concurrency=1)
    limit(q, "strict", ordered=True)
    limit(q, "slow", rate=1, per=3600)
    _make_plans(q)
    _fill_tables(sessions.hand)
    names = [f"g{n}" for n in range(_BACKLOG)]
    _put_each(filler, names * 2)
    full = take(filler, 10 * _BACKLOG)
    expect("full groups", len(full) >= _BACKLOG, wanted=True)
    for group in ("later", None):
        put(filler, group, _BACKLOG, delay_seconds=3600)
    put(filler, "slow", _BACKLOG)
    expect("granted of a slow group", groups(take(filler)), ["slow"])
    with q.unsaved():
        _reads_few(q, "an enqueue in a group", lambda: put(q, "a", 2))
        _reads_few(q, "a look for the next turn", lambda: q.execute(_NEXT_TURN))
        _reads_few(q, "a claim of a new job", lambda: expect("granted", groups(take(q, 1)), ["a"]))
        _reads_few(q, "the end of a job", lambda: done(q, full[7]))
        _reads_few(q, "a claim of a freed permit", lambda: expect("granted", groups(take(q, 1)), [full[7].group]))
        put(q, "strict", 1)
        failed(q, *take(q, 1))
        _reads_few(q, "a claim of a retried job", lambda: expect("granted", groups(take(q, 1)), ["strict"]))
        put(q, None, 1, priority=-5)
        _reads_few(q, "a claim of a job of no group", lambda: expect("granted", groups(take(q, 1)), ["None"]))
        put(q, "arrives", 1, delay_seconds=1)
        sessions.clock.advance(2)
        _reads_few(q, "a claim of a delayed job", lambda: expect("granted", groups(take(q, 1)), ["arrives"]))
        _reads_few(q, "a claim of nothing", lambda: expect("granted", take(q, 1), []))
        put(q, "long", _BACKLOG)
        _reads_few(q, "a claim of a job of a long group", lambda: expect("granted", groups(take(q, 1)), ["long"]))
        q.execute("select faultline.maintain_limits()")
        _reads_few(q, "upkeep in the same minute", lambda: q.execute("select faultline.maintain_limits()"))


PROBES.extend(
    Probe(
        f"claims within limits read what they grant {when}",
        frozenset(
            (
                "plan", "claim_limited", "pick_groups", "pick_permit_holders", "pick_ungrouped", "apply_group_events",
                "move_due_jobs_into_groups", "mark_groups_ready",
                "lock_limited_queue", "save_limited_queue", "has_due_ungrouped", "wake_for_free_permit", "groups",
                "group_events", "free_permits", "free_ended", "apply_until_room", "pick_jobs", "has_ready_group",
                "insert_arrival_events", "next_claim_at", "open_jobs",
            )
        ),
        partial(_claims_read_what_they_grant, begin=begin),
    )
    for when, begin in (
        ("in a session older than the backlog", _begin_small),
        ("where all had been done before", _begin_emptied),
    )
)  # fmt: skip


@probe("plan", "has_due_ungrouped", "pick_ungrouped")
def due_jobs_of_groups_are_not_all_read_for_those_of_none(sessions: Sessions) -> None:
    """They were delayed or retried, and are more than a claim moves into their groups."""
    q = sessions.open()
    sessions.clock.take()
    limit(q, "full", concurrency=1)
    put(q, "full", 1)
    expect("granted", groups(take(q)), ["full"])
    put(q, "full", 10 * _BACKLOG, delay_seconds=1)
    sessions.clock.advance(2)
    with q.unsaved():
        before = rows_read(q)
        q.execute(_NEXT_TURN)
        looked = rows_read(q) - before
        expect("granted", take(q, 1), [])
        claimed = rows_read(q) - before - looked
    if looked > 3 * _BACKLOG or claimed > 6 * _BACKLOG:
        raise AssertionError(f"a look read {looked} rows and a claim {claimed} beside a backlog of {10 * _BACKLOG}")


@probe("pick_ungrouped", "has_due_ungrouped")
def a_job_of_no_group_is_found_behind_others_that_are_due(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    limit(q, "*", ordered=True)
    put_each(q, 20)
    failed(q, *take(q))
    sessions.clock.advance(1)
    put(q, None, 1)
    found = [one.group for _ in range(3) for one in take(q, 2)]
    expect("granted by three claims of two", None in found, wanted=True)


@probe("plan", "expire", "open_jobs")
def expiry_reads_what_has_expired(sessions: Sessions) -> None:
    for begin in (_begin_small, _begin_emptied):
        _expiry_reads_few(sessions, begin)


def _expiry_reads_few(sessions: Sessions, begin: Callable[[Sessions], None]) -> None:
    q = sessions.open()
    begin(sessions)
    sessions.clock.take()
    with q.unsaved():
        for _ in range(_CALLS_BEFORE):
            put(q, None, 1, expires_seconds=1)
            sessions.clock.advance(2)
            q.execute(_EXPIRES)
    put(q, None, _BACKLOG)
    put(q, None, _BACKLOG, expires_seconds=3600)
    with q.unsaved():
        _reads_few(q, "a look for what has expired", lambda: q.execute(_EXPIRES))
        put(q, None, 1, expires_seconds=1)
        sessions.clock.advance(2)
        _reads_few(q, "expiry of one job", lambda: expect("expired", len(q.execute(_EXPIRES)), 1))


@probe("plan", "wait_behind")
def a_tick_that_waits_for_the_one_before_reads_no_others(sessions: Sessions) -> None:
    q = sessions.open()
    _begin_small(sessions)
    waits = "select faultline.wait_behind(%s, %s)"
    with q.unsaved():
        for _ in range(_CALLS_BEFORE):
            q.execute(waits, *put(q, None, 2))
    put(q, None, _BACKLOG)
    earlier, later = put(q, None, 2)
    with q.unsaved():
        _reads_few(q, "a tick that waits", lambda: expect("waits", q.value(waits, later, earlier), wanted=True))


@probe("plan", "due_schedules", "schedules")
def a_look_for_due_schedules_reads_those_that_are_due(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        for _ in range(_CALLS_BEFORE):
            q.run(schedules.due_schedules([]))
    sessions.hand.execute(
        "insert into faultline.schedules (name, spec, since, next_at, look_at, created_at, changed_at) select 's' || n,"
        " '{}', now(), now() + interval '1 hour', now() + interval '1 hour', now(), now() from generate_series(1, %s) n",
        _BACKLOG,
    )
    with q.unsaved():
        _reads_few(q, "a look for due schedules", lambda: expect("due", q.run(schedules.due_schedules([])), []))
