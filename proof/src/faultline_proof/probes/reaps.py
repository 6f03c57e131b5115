"""Crashed work comes back: to its place, with the right number of attempts, whoever reaps it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from faultline.core.model import Submission, Unwritten
from faultline.store import verbs
from faultline_proof.probes.probe import expect, probe, reasons, the_one

if TYPE_CHECKING:
    from faultline.core.model import Lease
    from faultline_proof.sessions import Session, Sessions


def _reap_after(sessions: Sessions, seconds: float = 31) -> list[Any]:
    sessions.clock.advance(seconds)
    return sessions.open().reap()


@probe("reap", "lost_jobs")
def an_expired_lease_is_taken_back_and_keeps_its_place(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    lease = q.new_lease()
    due = q.job(lease.job_id).next_run_at
    reaped = the_one("reaped", _reap_after(sessions, 30))
    found = (reaped.job_id, reaped.fencing_token, reaped.owner, reaped.queue, reaped.state.value, reaped.reason)
    expect("reaped", found, (lease.job_id, 1, lease.owner, "default", "queued", "lease_expired"))
    job = q.job(lease.job_id)
    seen = (job.state.value, job.owner, job.lease_expires_at, job.fencing_token, job.attempt, job.reaps, job.next_run_at)
    expect("the job", seen, ("queued", None, None, 1, 0, 1, due))
    entry = the_one("journal", q.journal(lease.job_id))
    expect("journal", (entry.event, entry.fencing_token, entry.owner), ("lease_reaped", 1, lease.owner))
    told = (entry.detail["reason"], entry.detail["state"], entry.detail["attempt"])
    expect("told", told, ("lease_expired", "queued", 0))
    expect("a zombie's completion", reasons(q.complete(lease)), ["lease_lost"])


@probe("reap")
def live_leases_and_waiting_jobs_are_left_alone(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    q.new_lease()
    q.enqueue()
    q.fail(q.new_lease(), then="fail")
    expect("reaped", _reap_after(sessions, 29.9), [])


@probe("reap", "lost_jobs")
def the_longest_expired_come_first_and_no_more_than_asked_for(sessions: Sessions) -> None:
    q = sessions.open()
    leases = [q.new_lease(lease_seconds=seconds) for seconds in (20, 10, 30)]
    sessions.clock.advance(60)
    expect("reaped", [job.job_id for job in q.reap(max_jobs=1)], [leases[1].job_id])
    expect("reaped then", {job.job_id for job in q.reap(max_jobs=2)}, {leases[0].job_id, leases[2].job_id})


@probe("first_expired", "reap", "lost_jobs")
def the_bound_is_the_first_lease_that_ran_out_and_now_without_one(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    leases = [q.new_lease(lease_seconds=seconds) for seconds in (20, 10, 3600)]
    expires = [q.job(lease.job_id).lease_expires_at for lease in leases]
    expect("while none has", q.run(verbs.first_expired()), q.value("select faultline.now()"))
    sessions.clock.advance(30)
    expect("of two", q.run(verbs.first_expired()), expires[1])
    expect("from the second on", q.run(verbs.first_expired(expires[0])), expires[0])
    expect("reaped from the second on", [job.job_id for job in q.reap(lower_bound=expires[0])], [leases[0].job_id])
    expect("reaped from the first on", [job.job_id for job in q.reap(lower_bound=expires[1])], [leases[1].job_id])
    expect("when all are back", q.run(verbs.first_expired(expires[1])), q.value("select faultline.now()"))


@probe("first_expired", "reap")
def a_bound_leads_from_one_lease_that_ran_out_to_the_next(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    jobs = [q.new_lease(lease_seconds=seconds).job_id for seconds in (10, 20)]
    bound, taken = None, []
    for _ in range(3):
        sessions.clock.advance(10)
        bound = q.run(verbs.first_expired(bound))
        taken += [job.job_id for job in q.reap(lower_bound=bound)]
    expect("taken", taken, jobs)
    expect("the bound in the end", bound, q.value("select faultline.now()"))


@probe("first_expired", "reap", "lost_jobs")
def a_lease_that_was_passed_over_stays_within_the_bound(sessions: Sessions) -> None:
    """Its own transaction had the row when it ran out, fenced or renewed, and ended later."""
    for what, end in (("fence", "rollback"), ("renew", "rollback"), ("renew", "commit")):
        q, holder = sessions.open(), sessions.open()
        sessions.clock.take()
        lease = q.new_lease()
        holder.begin()
        getattr(holder, what)(lease)
        bound = None
        for _ in range(3):
            sessions.clock.advance(31)
            bound = q.run(verbs.first_expired(bound))
            expect(f"reaped beside a {what}", q.reap(lower_bound=bound), [])
        getattr(holder, end)()
        bound = q.run(verbs.first_expired(bound))
        expect(f"after its {end}", [job.job_id for job in q.reap(lower_bound=bound)], [lease.job_id])
        q.run(verbs.cancel(lease.job_id))


@probe("first_expired", "reap")
def a_claim_that_is_committed_after_its_lease_is_found_without_a_bound(sessions: Sessions) -> None:
    """The one kind of lease that a bound can hide."""
    q, claimer = sessions.open(), sessions.open()
    job_id = q.enqueue()
    claimer.begin()
    claimer.claim_one()
    sessions.clock.advance(31)
    bound = q.run(verbs.first_expired())
    sessions.clock.advance(1)
    claimer.commit()
    expect("reaped from the bound on", q.reap(lower_bound=q.run(verbs.first_expired(bound))), [])
    found = q.reap(lower_bound=q.run(verbs.first_expired()))
    expect("reaped without it", [job.job_id for job in found], [job_id])


@probe("reap", "wake_for")
def reaped_jobs_wake_who_has_claimed_past_them(sessions: Sessions) -> None:
    q = sessions.open()
    back, ended = q.new_lease(priority=-2), q.new_lease(priority=-5, max_attempts=1)
    q.record_start(ended)
    q.execute("listen faultline")
    sessions.clock.advance(31)
    q.reap()
    notice = the_one("notifications", q.notices())
    expect("told of the job that came back", '"priority":-2' in notice, True)
    expect("it", q.state(back.job_id), "queued")


# Attempts


@probe("reap", "lost_jobs")
def an_attempt_counts_if_it_had_started_alone(sessions: Sessions) -> None:
    q = sessions.open()
    waiting, alone = q.new_lease(), q.new_lease()
    q.record_start(alone)
    first, second = (q.new_lease(worker="crowd") for _ in range(2))
    q.record_start(first, second)
    _reap_after(sessions)
    counted = [q.job(lease.job_id).attempt for lease in (waiting, alone, first, second)]
    expect("attempts counted", counted, [0, 1, 0, 0])


@probe("reap", "lost_jobs")
def an_attempt_does_not_count_if_its_company_was_taken_back_before(sessions: Sessions) -> None:
    q = sessions.open()
    crowd = [q.new_lease(worker="crowd") for _ in range(2)]
    waited, alone = (q.new_lease(worker="alone", lease_seconds=seconds) for seconds in (20, 30))
    q.record_start(*crowd)
    q.record_start(alone)
    sessions.clock.advance(31)
    while q.reap(max_jobs=1):
        pass
    counted = [q.job(lease.job_id).attempt for lease in (*crowd, waited, alone)]
    expect("attempts counted", counted, [0, 0, 0, 1])


@probe("reap")
def one_of_a_crowd_whose_row_was_locked_is_not_the_one_that_killed_the_worker(sessions: Sessions) -> None:
    q, somebody = sessions.open(), sessions.open()
    q.heartbeat()
    crowd = [q.new_lease(max_attempts=3) for _ in range(2)]
    q.record_start(*crowd)
    sessions.clock.advance(31)
    somebody.begin()
    somebody.execute("select from faultline.open_jobs where id = %s for update", crowd[0].job_id)
    q.reap()
    sessions.clock.advance(600)
    somebody.rollback()
    q.reap()
    expect("attempts counted", [q.job(lease.job_id).attempt for lease in crowd], [0, 0])


@probe("reap", "lost_jobs")
def what_a_worker_lost_before_its_last_sign_of_life_was_no_company(sessions: Sessions) -> None:
    for sign in ("a renewal", "a heartbeat"):
        q = sessions.open()
        lost, kept = (q.new_lease(worker="w", lease_seconds=seconds, max_attempts=3) for seconds in (10, 60))
        q.record_start(lost, kept)
        sessions.clock.advance(20)
        q.reap()
        sessions.clock.advance(1)
        if sign == "a renewal":
            q.renew(kept)
        else:
            q.heartbeat()
        sessions.clock.advance(61)
        q.reap(notice_dead=True)
        expect(f"attempts counted after {sign}", [q.job(lease.job_id).attempt for lease in (lost, kept)], [0, 1])
        sessions.hand.execute("delete from faultline.open_jobs; delete from faultline.workers")


@probe("reap", "lost_jobs")
def a_last_attempt_ends_the_job_if_it_had_started(sessions: Sessions) -> None:
    q = sessions.open()
    ended, waiting, early = q.new_lease(max_attempts=1), q.new_lease(max_attempts=1), q.new_lease(max_attempts=3)
    q.fail(early, error="an error of its own")
    early = _again(q, early)
    q.record_start(ended)
    q.record_start(early)
    reaped = {job.job_id: job for job in _reap_after(sessions)}[ended.job_id]
    told = (reaped.task, reaped.attempt, reaped.max_attempts, reaped.last_error)
    expect("told", told, (ended.task, 1, 1, "the worker died or lost its lease during the last attempt"))
    job = q.job(ended.job_id)
    expect(
        "ended",
        (job.state.value, job.attempt, job.last_error),
        ("failed", 1, "the worker died or lost its lease during the last attempt"),
    )
    expect("only prefetched", (q.state(waiting.job_id), q.job(waiting.job_id).attempt), ("queued", 0))
    expect("not the last", (q.state(early.job_id), q.job(early.job_id).last_error), ("queued", "an error of its own"))


def _again(q: Session, lease: Lease) -> Lease:
    again = q.claim_one(worker="another")
    expect("claimed again", again.job_id, lease.job_id)
    return again


@probe("reap", "claim")
def a_last_attempt_that_was_only_prefetched_is_given_back_for_ever(sessions: Sessions) -> None:
    q = sessions.open()
    job_id = q.enqueue(max_attempts=1)
    for _ in range(20):
        q.claim_one()
        _reap_after(sessions)
    job = q.job(job_id)
    expect("the job", (job.state.value, job.attempt, job.fencing_token), ("queued", 0, 20))


@probe("reap", "claim", "record_start")
def a_poison_job_stops_and_the_innocents_beside_it_succeed(sessions: Sessions) -> None:
    """Every worker prefetches everything, runs the poison job first and dies of it."""
    q = sessions.open()
    poison = q.enqueue("poison", priority=-1, max_attempts=3)
    innocents = [place.job_id for place in q.run(verbs.enqueue_many([Submission("t", max_attempts=3)] * 99))]
    deaths = 0
    while q.state(poison) == "queued" and deaths < 9:  # noqa: PLR2004 - it would go on for ever
        first, *_ = q.claim()
        expect("the first", first.job_id, poison)
        if first.needs_start_record:
            q.record_start(first)
        deaths += 1
        _reap_after(sessions)
    expect("the poison job", (q.state(poison), deaths), ("failed", 4))
    expect("attempts of the innocents", {q.job(job_id).attempt for job_id in innocents}, {0})
    expect("their completion", q.complete(*q.claim()), Unwritten())
    expect("their states", {q.state(job_id) for job_id in innocents}, {"succeeded"})


@probe("reap", "record_start")
def a_job_can_be_reaped_for_ever(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    q.record_start(lease)
    q.execute("update faultline.open_jobs set reaps = 32767")
    _reap_after(sessions)
    expect("reaps", q.job(lease.job_id).reaps, 32767)


@probe("reap", "record_start")
def a_job_that_only_waited_is_not_suspected_any_further(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    _reap_after(sessions)
    _again(q, lease)
    _reap_after(sessions)
    expect("reaps of one that was never started", q.job(lease.job_id).reaps, 1)
    q.record_start(_again(q, lease))
    _reap_after(sessions)
    expect("reaps of one that was", q.job(lease.job_id).reaps, 2)


@probe("record_start", "reap")
def the_mark_is_set_by_mark_started_alone(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        lease = q.new_lease()
        expect("before", q.value("select started from faultline.open_jobs"), False)
        expect("record_start", q.record_start(lease), Unwritten())
        expect("after", q.value("select started from faultline.open_jobs"), True)
