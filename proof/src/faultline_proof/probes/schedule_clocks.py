"""Schedules and time: a clock of the database that was ahead, and jobs of earlier ticks that have expired."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from faultline.core.schedules import Plan
from faultline.store.verbs import schedules as verbs
from faultline_proof.probes.probe import expect, probe
from faultline_proof.probes.schedule_ticks import MINUTE, due, fire, first, make, placed, tick_one

if TYPE_CHECKING:
    from faultline_proof.sessions import Session, Sessions

_DAY = 86400.0
_JOBS = "select count(*) from faultline.jobs"


def upkeep(q: Session) -> None:
    q.execute("select faultline.prune('ticks')")


@probe("set_back_schedules", "prune", "tick", "prune_ticks")
def a_schedule_goes_on_when_the_clock_was_ahead(sessions: Sessions) -> None:
    q = sessions.open()
    found = placed(q, sessions)
    tick = first(found)
    sessions.clock.advance(_DAY + 30)
    fire(q, found, tick, tick + MINUTE, tick + 1440 * MINUTE)
    sessions.clock.advance(-_DAY)
    expect("due", q.run(verbs.due_schedules([])), [])
    upkeep(q)
    found = due(q)
    expect("from when on", (found.next_at, found.since), (None, tick))
    q.run(tick_one(found, Plan([], [], found.since + MINUTE)))
    sessions.clock.advance(60)
    # The tick that was made while the clock was ahead has its job.
    fire(q, due(q), tick + MINUTE)
    expect("jobs", q.value(_JOBS), 3)
    sessions.clock.advance(60)
    fire(q, due(q), tick + 2 * MINUTE)
    expect("jobs after the next tick", q.value(_JOBS), 4)
    journal = "select detail ->> 'reason' from faultline.journal where event = 'setting_changed' order by at desc limit 1"
    expect("reason", q.value(journal), "the clock of the database was ahead")


@probe("set_back_schedules", "resume_schedule")
def a_paused_schedule_can_be_resumed_when_the_clock_was_ahead(sessions: Sessions) -> None:
    q = sessions.open()
    found = placed(q, sessions)
    sessions.clock.advance(_DAY)
    fire(q, found, first(found), first(found) + 1440 * MINUTE)
    q.execute("select faultline.pause_schedule('s')")
    sessions.clock.advance(-_DAY)
    upkeep(q)
    expect("due while it is paused", q.run(verbs.due_schedules([])), [])
    q.execute("select faultline.resume_schedule('s')")
    found = due(q)
    expect("next tick", (found.next_at, found.since), (None, found.clock))


@probe("set_back_schedules", "schedule_failed")
def a_schedule_that_failed_while_the_clock_was_ahead_is_looked_at(sessions: Sessions) -> None:
    q = sessions.open()
    found = placed(q, sessions)
    sessions.clock.advance(_DAY)
    q.run(verbs.schedule_failed(due(q), "too large"))
    sessions.clock.advance(-_DAY)
    expect("due", q.run(verbs.due_schedules([])), [])
    upkeep(q)
    expect("position", due(q).next_at, found.next_at)


@probe("busy_jobs", "has_expired", "tick")
def a_tick_is_not_skipped_for_a_job_that_has_expired(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    spec = {"every": 60, "overlap": "skip", "job": {"task": "t", "expires_seconds": 30}}
    q.execute("select faultline.set_schedule('s', %s::json)", json.dumps(spec))
    found = due(q)
    q.run(tick_one(found, Plan([], [], found.since + MINUTE)))
    for seconds in (60, 60):
        sessions.clock.advance(seconds)
        found = due(q)
        expect("outcome", [one.outcome for one in fire(q, found, first(found))], ["fired"])


@probe("set_back_schedules")
def a_clock_that_is_set_back_a_little_changes_no_schedule(sessions: Sessions) -> None:
    q = sessions.open()
    found = placed(q, sessions)
    fire(q, found, first(found))
    make(q, "rare")
    rare = due(q)
    q.run(tick_one(rare, Plan([], [], rare.since + 60 * MINUTE)))
    before = q.execute("select * from faultline.schedules order by id")
    sessions.clock.advance(-30)
    upkeep(q)
    expect("schedules", q.execute("select * from faultline.schedules order by id"), before)
