"""What verbs of limits and schedules leave behind: what they acknowledged is on disk, and no door is open."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from faultline.core.model import Submission
from faultline.core.schedules import Missed, Plan, Policy, Rule
from faultline.store import verbs
from faultline.store.verbs import schedules
from faultline_proof.probes.limit_stage import limit, put
from faultline_proof.probes.probe import expect, probe
from faultline_proof.probes.schedule_ticks import MINUTE, fire, first, make, placed, tick_one

if TYPE_CHECKING:
    from collections.abc import Callable

    from faultline.store.verbs.schedules import DueSchedule
    from faultline_proof.sessions import Session, Sessions

_EACH = json.dumps({"each_group": {"concurrency": 3}})


def _resume(q: Session, due: DueSchedule) -> None:
    q.run(schedules.pause_schedule("s"))
    q.execute("set local synchronous_commit = off")
    q.run(schedules.resume_schedule("s", due.clock + MINUTE))


def _change(q: Session, _: DueSchedule) -> None:
    job = Submission("t", "{}", queue="mail")
    q.run(schedules.set_schedule("s", schedules.spec_text(Rule(every=120.0), job, Policy())))


def _miss(q: Session, due: DueSchedule) -> None:
    """It makes no job, which would be durable by itself."""
    q.run(tick_one(due, Plan([], [Missed(first(due), first(due), 1)], first(due) + MINUTE)))


def _declare(q: Session, _: DueSchedule) -> None:
    job = Submission("t", "{}", queue="mail")
    spec = schedules.spec_text(Rule(every=120.0), job, Policy())
    q.run(schedules.declare_schedules("w", [schedules.Declaration("declared", "d", None, spec)]))


def _backfill(q: Session, due: DueSchedule) -> None:
    q.run(schedules.backfill("s", [due.clock - timedelta(hours=1)]))


_VERBS: dict[str, Callable[[Session, DueSchedule], Any]] = {
    "declare_queue": lambda q, _: q.execute("select faultline.declare_queue('other', %s::jsonb)", _EACH),
    "set_limit": lambda q, _: limit(q, "a", concurrency=7),
    "reset_limit": lambda q, _: q.execute("select faultline.reset_limit('default', '*')"),
    "recount": lambda q, _: q.execute("select faultline.recount()"),
    "expire": lambda q, _: q.execute("select * from faultline.expire()"),
    "declare_schedules": _declare,
    "set_schedule": lambda q, _: make(q, "other"),
    "set_schedule of one that there is": _change,
    "tick of a missed run": _miss,
    "tick": lambda q, due: fire(q, due, first(due)),
    "pause_schedule": lambda q, _: q.run(schedules.pause_schedule("s")),
    "resume_schedule": _resume,
    "run_schedule": lambda q, _: q.run(schedules.run_schedule("s")),
    "backfill": _backfill,
    "remove_schedule": lambda q, _: q.run(schedules.remove_schedule("s")),
}


def _set_up(q: Session, sessions: Sessions) -> DueSchedule:
    """A schedule that is due, a limit, and a job that has expired."""
    sessions.clock.take()
    limit(q, "*", concurrency=2)
    put(q, "a", 1, expires_seconds=1)
    return placed(q, sessions)


@probe("require_synchronous_commit")
def what_limits_and_schedules_acknowledge_is_durable(sessions: Sessions) -> None:
    q = sessions.open()
    due = _set_up(q, sessions)
    for verb, call in _VERBS.items():
        with q.unsaved():
            q.execute("set local synchronous_commit = off")
            call(q, due)
            expect(f"synchronous_commit after {verb}", q.value("show synchronous_commit"), "on")
    with q.unsaved():
        q.execute("set transaction isolation level repeatable read")
        q.execute("set local synchronous_commit = off")
        # Under a new snapshot it counts permits, too, and that is durable by itself.
        q.run(verbs.reconcile())
        expect("synchronous_commit after reconcile", q.value("show synchronous_commit"), "on")


@probe(
    "door", "set_current_verb", "tick", "backfill", "run_schedule", "resume_schedule", "change_schedule", "remove_schedule"
)
def a_verb_of_limits_or_schedules_leaves_no_door_open(sessions: Sessions) -> None:
    q = sessions.open()
    due = _set_up(q, sessions)
    for verb, call in _VERBS.items():
        with q.unsaved():
            call(q, due)
            expect(f"the verb after {verb}", q.value("select current_setting('faultline.verb', true)") or "", "")


_SYNCS = "select count(*) from faultline.claim(%s, 'w/1', 1, syncs => %s)"


@probe("claim", "maintain_limits", "allow_asynchronous_commit", "require_synchronous_commit")
def only_a_claim_that_its_caller_syncs_does_not_wait_for_the_disk(sessions: Sessions) -> None:
    q = sessions.open()
    limit(q, "*", concurrency=2)
    put(q, "a", 1)
    q.enqueue(queue="plain")
    q.execute("set synchronous_commit = on")
    for queue, syncs, has_written, level in (
        ("default", True, False, "off"),
        ("default", False, False, "on"),
        ("plain", True, False, "on"),
        # What was written before is not its own.
        ("default", True, True, "on"),
    ):
        with q.unsaved():
            if has_written:
                q.enqueue(queue="elsewhere")
            expect("claimed", q.value(_SYNCS, queue, syncs), 1)
            story = f"a claim of {queue}, syncs {syncs}, in a transaction that has written {has_written}"
            expect(story, q.value("show synchronous_commit"), level)
    for has_written, level in ((False, "off"), (True, "on")):
        with q.unsaved():
            if has_written:
                q.enqueue(queue="elsewhere")
            q.execute("select faultline.maintain_limits()")
            expect(f"upkeep in a transaction that has written {has_written}", q.value("show synchronous_commit"), level)
    q.execute("select faultline.maintain_limits()")
    expect("the session keeps its own", q.value("show synchronous_commit"), "on")
    q.execute("reset synchronous_commit")


@probe("sync_claim", "require_synchronous_commit")
def a_claim_is_synced_by_a_write_and_only_if_it_is_still_there(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    written = "select pg_current_xact_id_if_assigned() is not null and pg_current_wal_insert_lsn() > %s::pg_lsn"
    with q.unsaved():
        q.execute("set local synchronous_commit = off")
        before = q.value("select pg_current_wal_insert_lsn()::text")
        expect("its claim is there", q.run(verbs.sync_claim(lease)), True)
        expect("it has written something", q.value(written, before), True)
        expect("synchronous_commit after sync_claim", q.value("show synchronous_commit"), "on")
    for other in (
        replace(lease, job_id=q.enqueue()),
        replace(lease, fencing_token=lease.fencing_token + 1),
        replace(lease, owner="another/1"),
    ):
        expect("a claim that is not there", q.run(verbs.sync_claim(other)), False)
