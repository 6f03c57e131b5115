"""Ticks: one job for each, whoever decides, however often and in whatever order."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from faultline.core.model import Submission
from faultline.core.schedules import Missed, Plan, Policy, Rule
from faultline.store.statement import Statement
from faultline.store.verbs import flow, operate
from faultline.store.verbs import schedules as verbs
from faultline.store.verbs.schedules import Ticked
from faultline_proof.probes.probe import expect, probe, refused, the_one

if TYPE_CHECKING:
    from faultline.store.verbs.schedules import DueSchedule
    from faultline_proof.sessions import Session, Sessions

MINUTE = timedelta(minutes=1)
JITTER = 30.0
_STATE = "select next_at, last_at, look_at, ended_at, failures, revision from faultline.schedules where name = %s"


def make(q: Session, name: str = "s", **policy: Any) -> None:
    """A schedule that ticks every minute, from a minute after now on."""
    job = Submission("t", '{"sum": 1e16}', queue="mail")
    q.run(verbs.set_schedule(name, verbs.spec_text(Rule(every=60.0), job, Policy(**policy))))


def tick_one(due: DueSchedule, plan: Plan) -> Statement[list[Ticked]]:
    """Decide about one schedule alone."""
    missed = [{"from": one.first.isoformat(), "to": one.last.isoformat(), "ticks": one.ticks} for one in plan.missed]
    return Statement(
        name="tick",
        sql="select at, outcome, job_id from faultline.tick(%s, %s, %s, %s::timestamptz[], %s::jsonb, %s)",
        params=(due.name, due.revision, due.next_at, list(plan.fire), json.dumps(missed), plan.next_at),
        read=lambda rows: [Ticked(due.name, at, outcome, job_id, None) for at, outcome, job_id in rows],
    )


def due(q: Session, *digests: str) -> DueSchedule:
    found: list[DueSchedule] = q.run(verbs.due_schedules(digests))
    return the_one("due", found)


def placed(q: Session, sessions: Sessions, **policy: Any) -> DueSchedule:
    """A schedule with a tick that is due now."""
    sessions.clock.take()
    make(q, **policy)
    found = due(q)
    q.run(tick_one(found, Plan([], [], found.since + MINUTE)))
    sessions.clock.advance(60)
    return due(q)


def fire(q: Session, found: DueSchedule, *ticks: datetime, then: datetime | None = None) -> list[Ticked]:
    return q.run(tick_one(found, Plan(list(ticks), [], then or ticks[-1] + MINUTE)))


def first(found: DueSchedule) -> datetime:
    return found.next_at or found.since


@probe("set_schedule", "due_schedules", "tick", "tick_job")
def a_tick_makes_one_job_and_moves_the_position(sessions: Sessions) -> None:
    q = sessions.open()
    found = placed(q, sessions)
    expect("position", found.next_at, found.clock)
    ticked = the_one("ticked", fire(q, found, first(found)))
    expect("outcome", (ticked.at, ticked.outcome), (found.next_at, "fired"))
    stored = q.execute("select id, task, queue, args::text from faultline.jobs")
    expect("job", stored, [(ticked.job_id, "t", "mail", '{"sum": 1e16}')])
    expect("due", q.run(verbs.due_schedules([])), [])
    expect("state", q.execute(_STATE, "s")[0][:3], (found.clock + MINUTE, found.next_at, found.clock + MINUTE))
    expect("broken", q.broken_invariants(), [])


@probe("tick")
def the_same_tick_decided_twice_makes_one_job(sessions: Sessions) -> None:
    q, other = sessions.open(), sessions.open()
    found = placed(q, sessions)
    fire(q, found, first(found))
    expect("again", fire(other, found, first(found)), [])
    # Even if the position was lost: what is on record is on record.
    sessions.hand.execute("update faultline.schedules set next_at = %s, look_at = %s", found.next_at, found.next_at)
    expect("with a lost position", fire(other, found, first(found)), [])
    expect("jobs", q.value("select count(*) from faultline.jobs"), 1)


@probe("tick")
def while_one_decides_another_passes_by(sessions: Sessions) -> None:
    q, other = sessions.open(), sessions.open()
    found = placed(q, sessions)
    q.begin()
    fire(q, found, first(found))
    expect("meanwhile", sessions.at_once(other, lambda o: fire(o, found, first(found))), [])
    q.rollback()
    expect("rolled back", len(fire(other, found, first(found))), 1)
    expect("jobs", q.value("select count(*) from faultline.jobs"), 1)


@probe("tick", "change_schedule", "pause_schedule")
def ticks_of_another_revision_are_not_decided_about(sessions: Sessions) -> None:
    q = sessions.open()
    found = placed(q, sessions)
    make(q, overlap="skip")
    expect("changed", fire(q, found, first(found)), [])
    again = due(q)
    expect("its position stays", again.next_at, found.next_at)
    q.run(verbs.pause_schedule("s"))
    expect("paused", fire(q, again, first(found)), [])
    expect("due", q.run(verbs.due_schedules([])), [])
    expect("jobs", q.value("select count(*) from faultline.jobs"), 0)


@probe("tick")
def only_ticks_that_follow_the_position_are_decided_about(sessions: Sessions) -> None:
    q = sessions.open()
    found = placed(q, sessions)
    at, next_at = found.clock, found.clock + MINUTE
    wrong = {
        "of the past": Plan([at - MINUTE, at], [], next_at),
        "left out": Plan([at + timedelta(microseconds=1)], [], next_at),
        "that have yet to come": Plan([at, next_at], [], next_at + MINUTE),
        "twice": Plan([at, at], [], next_at),
        "and back": Plan([at], [], at),
        "none": Plan([], [], next_at),
        "missed ones of the future": Plan([], [Missed(at, next_at, 2)], next_at + MINUTE),
        "missed ones of the past": Plan([], [Missed(at - MINUTE, at, 2)], next_at),
    }
    for what, plan in wrong.items():
        with refused(q, "FL005", "do not follow its position", what=what):
            q.run(tick_one(found, plan))
    make(q, "new")
    [new] = [one for one in q.run(verbs.due_schedules([])) if one.name == "new"]
    for what, plan in {
        "before it was there": Plan([new.since], [], new.since + MINUTE),
        "next in the past": Plan([], [], new.since),
    }.items():
        with refused(q, "FL005", "do not follow its position", what=what):
            q.run(tick_one(new, plan))
    expect("jobs", q.value("select count(*) from faultline.jobs"), 0)
    expect("ticks", q.value("select count(*) from faultline.ticks"), 0)


@probe("tick")
def a_run_of_missed_ticks_is_one_row(sessions: Sessions) -> None:
    q = sessions.open()
    found = placed(q, sessions)
    sessions.clock.advance(600)
    begin = first(found)
    plan = Plan([begin + 10 * MINUTE], [Missed(begin, begin + 9 * MINUTE, 10)], begin + 11 * MINUTE)
    q.run(tick_one(found, plan))
    stored = q.execute("select at, kind, outcome, last_at, ticks, job_id is null from faultline.ticks order by at")
    expect("ticks", stored[0], (begin, "missed", "missed", begin + 9 * MINUTE, 10, True))
    expect("fired", stored[1][:3], (begin + 10 * MINUTE, "tick", "fired"))
    expect("last", q.value("select last_at from faultline.schedules"), begin + 10 * MINUTE)


@probe("tick", "due_schedules")
def a_schedule_without_a_next_tick_has_ended(sessions: Sessions) -> None:
    q = sessions.open()
    found = placed(q, sessions)
    q.run(tick_one(found, Plan([first(found)], [], None)))
    expect("state", q.execute(_STATE, "s")[0][:4], (None, found.next_at, None, found.clock))
    sessions.clock.advance(3600)
    expect("due", q.run(verbs.due_schedules([])), [])
    expect("ticks of an ended one", q.run(tick_one(found._replace(next_at=None), Plan([], [], found.clock + MINUTE))), [])


@probe("tick", "busy_jobs")
def overlaps_are_skipped_or_wait_or_are_cancelled(sessions: Sessions) -> None:
    q = sessions.open()
    open_jobs = "select count(*) from faultline.open_jobs where state in ('queued', 'running')"
    expected = {"allow": (5, 0, 5), "skip": (1, 4, 1), "one": (2, 3, 2), "cancel": (5, 0, 1)}
    for overlap, (fired, skipped, left) in expected.items():
        with q.unsaved():
            found = placed(q, sessions, overlap=overlap)
            sessions.clock.advance(240)
            ticked = fire(q, found, *(first(found) + number * MINUTE for number in range(5)))
            outcomes = [one.outcome for one in ticked]
            expect(overlap, (outcomes.count("fired"), outcomes.count("skipped"), q.value(open_jobs)), (fired, skipped, left))
            expect(
                f"{overlap}: without a job", all((one.job_id is None) == (one.outcome == "skipped") for one in ticked), True
            )


@probe("tick", "wait_behind")
def with_one_the_job_of_a_tick_waits_until_the_job_before_has_ended(sessions: Sessions) -> None:
    q = sessions.open()
    found = placed(q, sessions, overlap="one")
    sessions.clock.advance(600)
    begin = first(found)
    [_, waiting] = fire(q, found, begin, begin + MINUTE)
    [older] = q.claim(2, queue="mail")
    expect("beside two", [one.outcome for one in fire(q, due(q), begin + 2 * MINUTE)], ["skipped"])
    expect("waits", q.claim(1, queue="mail"), [])
    q.complete(older)
    q.run(flow.resolve())
    [newer] = q.claim(2, queue="mail")
    expect("then", newer.job_id, waiting.job_id)
    [next_one] = fire(q, due(q), begin + 3 * MINUTE)
    # Not only by success: a worker that dies, or a person who cancels, ends it as well.
    q.run(operate.cancel(newer.job_id))
    q.run(flow.resolve())
    expect("behind the cancelled one", [lease.job_id for lease in q.claim(2, queue="mail")], [next_one.job_id])
    expect("broken", q.broken_invariants(), [])


@probe("wait_behind", "tick")
def with_one_a_tick_whose_earlier_job_is_locked_is_decided_later(sessions: Sessions) -> None:
    q, worker = sessions.open(), sessions.open()
    found = placed(q, sessions, overlap="one")
    fire(q, found, first(found))
    sessions.clock.advance(60)
    lease = q.claim_one(queue="mail")
    later = due(q)
    worker.begin()
    worker.complete(lease)
    # Who ends it has not seen that it is waited for: nobody would wake the job.
    with refused(q, "55P03", "cannot be waited for now"):
        sessions.at_once(q, lambda o: fire(o, later, first(later)))
    expect("undecided", due(q).next_at, later.next_at)
    worker.commit()
    [made] = fire(q, later, first(later))
    expect("it has ended", [one.job_id for one in q.claim(1, queue="mail")], [made.job_id])
    expect("broken", q.broken_invariants(), [])


@probe("busy_jobs", "tick")
def a_flow_overlaps_until_all_of_it_has_ended(sessions: Sessions) -> None:
    q = sessions.open()
    found = placed(q, sessions, overlap="skip")
    sessions.clock.advance(600)
    begin = first(found)
    fire(q, found, begin)
    root = q.claim_one(queue="mail")
    child = q.enqueue()
    sessions.hand.execute("insert into faultline.flows (id, begun_at) values (%s, now())", root.job_id)
    sessions.hand.execute(
        "update faultline.open_jobs set flow_id = %s where id = any (%s)", root.job_id, [root.job_id, child]
    )
    call = sessions.hand.value(
        "insert into faultline.calls (job_id, number, kind, name, fencing_token, begun_at)"
        " values (%s, '1', 'children', 'c', 1, now()) returning id",
        root.job_id,
    )
    sessions.hand.execute("insert into faultline.edges (call_id, index, job_id) values (%s, 0, %s)", call, child)
    q.complete(root)
    expect("a child is open", [one.outcome for one in fire(q, due(q), begin + MINUTE)], ["skipped"])
    q.complete(q.claim_one())
    expect("all has ended", [one.outcome for one in fire(q, due(q), begin + 2 * MINUTE)], ["fired"])


@probe("cancel_busy", "tick")
def a_tick_that_cancels_waits_for_no_transaction_of_a_job(sessions: Sessions) -> None:
    q, worker = sessions.open(), sessions.open()
    found = placed(q, sessions, overlap="cancel")
    fire(q, found, first(found))
    sessions.clock.advance(60)
    lease = q.claim_one(queue="mail")
    later = due(q)
    worker.begin()
    worker.fence(lease)
    with refused(q, "55P03", "cannot be cancelled now"):
        sessions.at_once(q, lambda o: fire(o, later, first(later)))
    expect("undecided", due(q).next_at, later.next_at)
    worker.rollback()
    expect("then", [one.outcome for one in fire(q, later, first(later))], ["fired"])
    expect("the old one", str(q.state(lease.job_id)), "cancelled")
    expect("why", q.journal(lease.job_id)[-1].detail["reason"], "the next tick of its schedule has come")


@probe("tick_job", "tick")
def jitter_is_the_same_whoever_decides_and_differs_from_tick_to_tick(sessions: Sessions) -> None:
    q = sessions.open()
    found = placed(q, sessions, jitter_seconds=JITTER)
    sessions.clock.advance(240)
    ticked = fire(q, found, *(first(found) + number * MINUTE for number in range(5)))
    now = due_clock(q)
    run_at = q.execute("select next_run_at from faultline.jobs where id = any (%s)", [one.job_id for one in ticked])
    late = [(at - now).total_seconds() for (at,) in run_at]
    expect("within bounds", min(late) >= 0 and max(late) < JITTER, True)
    expect("differs", len(set(late)) > 1, True)
    hash_of = "select faultline.tick_job('s', '{\"jitter_seconds\": 30, \"job\": {}}', %s, %s)::jsonb ->> 'run_at'"
    moment = datetime(2026, 11, 17, 9, tzinfo=UTC)
    first_time = q.value(hash_of, moment, moment)
    q.execute("set timezone = 'Asia/Tokyo'")
    expect("in another time zone", q.value(hash_of, moment, moment), first_time)


def due_clock(q: Session) -> datetime:
    found: datetime = q.value("select faultline.clock()")
    return found


@probe("tick_job", "tick")
def a_task_that_asks_for_its_tick_gets_it(sessions: Sessions) -> None:
    q = sessions.open()
    found = placed(q, sessions, tick_arg="moment")
    ticked = the_one("ticked", fire(q, found, first(found)))
    args = q.job(ticked.job_id).args  # type: ignore[arg-type]
    expect("moment", datetime.fromisoformat(args["moment"]), found.next_at)
    expect("the others", args["sum"], 1e16)


@probe("tick_many")
def many_schedules_are_decided_together_and_each_by_itself(sessions: Sessions) -> None:
    q, somebody = sessions.open(), sessions.open()
    sessions.clock.take()
    make(q)
    make(q, "locked", overlap="cancel")
    for one in q.run(verbs.due_schedules([])):
        q.run(tick_one(one, Plan([], [], one.since + MINUTE)))
    sessions.clock.advance(60)
    running = next(one for one in q.run(verbs.due_schedules([])) if one.name == "locked")
    ticked = the_one("ticked", fire(q, running, first(running)))
    sessions.clock.advance(60)
    by_name = {one.name: one for one in q.run(verbs.due_schedules([]))}
    good, held = by_name["s"], by_name["locked"]
    somebody.begin()
    somebody.execute("select from faultline.open_jobs where id = %s for update", ticked.job_id)
    decisions = [
        verbs.Decision(good, Plan([first(good) - MINUTE], [], first(good) + MINUTE)),
        verbs.Decision(held, Plan([first(held)], [], first(held) + MINUTE)),
        verbs.Decision(good, Plan([first(good)], [], first(good) + MINUTE)),
    ]
    told = [(one.name, one.outcome, bool(one.error)) for one in q.run(verbs.tick_many(decisions))]
    expect("told", told, [("s", None, True), ("s", "fired", False)])
    expect("jobs", q.value("select count(*) from faultline.jobs"), 2)
    somebody.rollback()
    with refused(q, "FL005", "too many"):
        q.run(verbs.tick_many([decisions[2]] * 51))
    q.execute("begin read only")
    with refused(q, "25006", "read-only"):
        q.run(verbs.tick_many(decisions))
    q.rollback()
