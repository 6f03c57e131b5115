"""Crashed work comes back: to its place, with the right number of attempts, whoever reaps it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from faultline.core.model import Settled
from faultline.proof.probes.probe import expect, probe, reasons, the_one
from faultline.store import queue as verbs

if TYPE_CHECKING:
    from faultline.core.model import Lease
    from faultline.proof.sessions import Session, Sessions


def _reap_after(sessions: Sessions, seconds: float = 31) -> list[Any]:
    sessions.clock.advance(seconds)
    return sessions.open().reap()


@probe("reap")
def an_expired_lease_is_taken_back_and_keeps_its_place(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    lease = q.new_lease()
    due = q.job(lease.job_id).next_run_at
    reaped = the_one("reaped", _reap_after(sessions, 30))
    found = (reaped.job_id, reaped.fencing_token, reaped.owner, reaped.state.value, reaped.reason)
    expect("reaped", found, (lease.job_id, 1, lease.owner, "queued", "lease_expired"))
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


@probe("reap")
def the_longest_expired_come_first_and_no_more_than_asked_for(sessions: Sessions) -> None:
    q = sessions.open()
    leases = [q.new_lease(lease_seconds=seconds) for seconds in (20, 10, 30)]
    sessions.clock.advance(60)
    expect("reaped", [job.job_id for job in q.reap(max_jobs=1)], [leases[1].job_id])
    expect("reaped then", {job.job_id for job in q.reap(max_jobs=2)}, {leases[0].job_id, leases[2].job_id})


@probe("first_expired", "reap")
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


@probe("reap", "wake_for")
def reaped_jobs_wake_who_has_claimed_past_them(sessions: Sessions) -> None:
    q = sessions.open()
    back, ended = q.new_lease(priority=-2), q.new_lease(priority=-5, max_attempts=1)
    q.mark_started(ended)
    q.execute("listen faultline")
    sessions.clock.advance(31)
    q.reap()
    notice = the_one("notifications", q.notices())
    expect("told of the job that came back", '"priority" : -2' in notice, True)
    expect("it", q.state(back.job_id), "queued")


# Attempts


@probe("reap")
def an_attempt_counts_if_it_had_started_alone(sessions: Sessions) -> None:
    q = sessions.open()
    waiting, alone = q.new_lease(), q.new_lease()
    q.mark_started(alone)
    first, second = (_claimed_by(q, "crowd") for _ in range(2))
    q.mark_started(first, second)
    _reap_after(sessions)
    counted = [q.job(lease.job_id).attempt for lease in (waiting, alone, first, second)]
    expect("attempts counted", counted, [0, 1, 0, 0])


@probe("reap")
def an_attempt_does_not_count_if_its_company_was_taken_back_before(sessions: Sessions) -> None:
    q = sessions.open()
    crowd = [_claimed_by(q, "crowd") for _ in range(2)]
    waited, alone = (_claimed_by(q, "alone", lease_seconds=seconds) for seconds in (20, 30))
    q.mark_started(*crowd)
    q.mark_started(alone)
    sessions.clock.advance(31)
    while q.reap(max_jobs=1):
        pass
    counted = [q.job(lease.job_id).attempt for lease in (*crowd, waited, alone)]
    expect("attempts counted", counted, [0, 0, 0, 1])


@probe("reap")
def what_a_worker_lost_before_its_last_sign_of_life_was_no_company(sessions: Sessions) -> None:
    for sign in ("a renewal", "a heartbeat"):
        q = sessions.open()
        lost, kept = (_claimed_by(q, "w", lease_seconds=seconds, max_attempts=3) for seconds in (10, 60))
        q.mark_started(lost, kept)
        sessions.clock.advance(20)
        q.reap()
        sessions.clock.advance(1)
        if sign == "a renewal":
            q.renew(kept)
        else:
            q.beat()
        sessions.clock.advance(61)
        q.reap(notice_dead=True)
        expect(f"attempts counted after {sign}", [q.job(lease.job_id).attempt for lease in (lost, kept)], [0, 1])
        sessions.hand.execute("delete from faultline.open_jobs; delete from faultline.workers")


def _claimed_by(q: Session, worker: str, **fields: Any) -> Lease:
    q.enqueue(**{"priority": -100, **fields})
    return q.claim_one(worker=worker)


@probe("reap")
def a_last_attempt_ends_the_job_if_it_had_started(sessions: Sessions) -> None:
    q = sessions.open()
    ended, waiting, early = q.new_lease(max_attempts=1), q.new_lease(max_attempts=1), q.new_lease(max_attempts=3)
    q.fail(early, error="an error of its own")
    early = _again(q, early)
    q.mark_started(ended)
    q.mark_started(early)
    reaped = {job.job_id: job for job in _reap_after(sessions)}[ended.job_id]
    told = (reaped.task, reaped.attempt, reaped.max_attempts, reaped.last_error)
    expect("told", told, (ended.task, 1, 1, "the worker was lost during the last attempt"))
    job = q.job(ended.job_id)
    expect(
        "ended", (job.state.value, job.attempt, job.last_error), ("failed", 1, "the worker was lost during the last attempt")
    )
    expect("only prefetched", (q.state(waiting.job_id), q.job(waiting.job_id).attempt), ("queued", 0))
    expect("not the last", (q.state(early.job_id), q.job(early.job_id).last_error), ("queued", "an error of its own"))


def _again(q: Session, lease: Lease) -> Lease:
    again = q.claim_one(worker="another")
    expect("claimed again", again.job_id, lease.job_id)
    return again


@probe("reap", "mark_started")
def a_job_can_be_reaped_for_ever(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    q.mark_started(lease)
    q.execute("update faultline.open_jobs set reaps = 32767")
    _reap_after(sessions)
    expect("reaps", q.job(lease.job_id).reaps, 32767)


@probe("reap", "mark_started")
def a_job_that_only_waited_is_not_suspected_any_further(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    _reap_after(sessions)
    _again(q, lease)
    _reap_after(sessions)
    expect("reaps of one that was never started", q.job(lease.job_id).reaps, 1)
    q.mark_started(_again(q, lease))
    _reap_after(sessions)
    expect("reaps of one that was", q.job(lease.job_id).reaps, 2)


# Dead workers


def _long_lease(sessions: Sessions, worker: str = "w", *, watched: bool = True) -> tuple[Session, Lease]:
    """A lease of an hour, of a worker that beats, on a server that has been up for a while."""
    sessions.clock.set_since_start(60)
    q = sessions.open()
    q.beat(worker, watched=watched)
    return q, _claimed_by(q, worker, lease_seconds=3600)


def _lock(q: Session, worker: str = "w") -> None:
    expect(f"{worker} takes its lock", q.value("select pg_try_advisory_lock(faultline.worker_lock(%s))", worker), True)


@probe("dead_workers", "reap", "worker_lock", "beat")
def a_dead_workers_jobs_come_back_and_only_they(sessions: Sessions) -> None:
    q, lease = _long_lease(sessions)
    alive, _ = _long_lease(sessions, "alive")
    _lock(alive, "alive")
    unknown = _claimed_by(q, "unknown", lease_seconds=4)
    died = sessions.open()
    _lock(died)
    sessions.clock.advance(3.1)
    expect("reaped while its session lives", q.reap(), [])
    sessions.end(died)
    expect("reaped by who leaves the dead alone", q.reap(notice_dead=False), [])
    reaped = the_one("reaped", q.reap())
    expect("reaped", (reaped.job_id, reaped.reason), (lease.job_id, "worker_lost"))
    expect("the others' jobs", q.state(unknown.job_id), "running")
    expect("on the list", q.value("select array_agg(id) from faultline.workers"), ["alive"])
    told = q.execute("select owner, detail ->> 'host' from faultline.journal where event = 'worker_lost'")
    expect("told", told, [("w", "h")])
    expect("locks left behind", q.value("select count(*) from pg_locks where locktype = 'advisory' and pid = %s", q.pid), 0)
    q.beat()
    expect("back on the list", q.value("select array_agg(id order by id) from faultline.workers"), ["alive", "w"])
    expect("its completion", reasons(q.complete(lease)), ["lease_lost"])


@probe("reap")
def a_bound_keeps_nothing_of_the_dead(sessions: Sessions) -> None:
    q, lease = _long_lease(sessions)
    sessions.clock.advance(60)
    bound = q.value("select lease_expires_at + interval '1 hour' from faultline.open_jobs where id = %s", lease.job_id)
    expect("reaped", [job.job_id for job in q.reap(lower_bound=bound)], [lease.job_id])


@probe("reap")
def a_dead_worker_that_held_nothing_is_taken_off_the_list(sessions: Sessions) -> None:
    q, died = sessions.open(), sessions.open()
    sessions.clock.take()
    died.beat()
    _lock(died)
    sessions.end(died)
    sessions.clock.advance(3.1)
    expect("reaped", q.reap(), [])
    expect("on the list", q.value("select count(*) from faultline.workers"), 0)


@probe("dead_workers")
def who_has_just_beaten_or_cannot_be_watched_is_not_dead(sessions: Sessions) -> None:
    q, _ = _long_lease(sessions)
    sessions.clock.advance(2.9)
    expect("reaped after 2.9 s", q.reap(), [])
    pooled, _ = _long_lease(sessions, "pooled", watched=False)
    q.beat()
    sessions.clock.advance(600)
    q.beat()
    expect("reaped behind a pooler", pooled.reap(), [])


@probe("dead_workers")
def who_reaps_on_his_own_session_does_not_bury_himself(sessions: Sessions) -> None:
    q, _ = _long_lease(sessions)
    _lock(q)
    _, other = _long_lease(sessions, "other")
    sessions.clock.advance(60)
    expect("reaped", [job.job_id for job in q.reap()], [other.job_id])


@probe("dead_workers")
def two_reapers_do_not_both_bury_a_worker(sessions: Sessions) -> None:
    q, lease = _long_lease(sessions)
    second = sessions.open()
    second.beat("idle")
    sessions.clock.advance(60)
    q.begin()
    expect("reaped by one", [job.job_id for job in q.reap()], [lease.job_id])
    expect("reaped by the other", sessions.at_once(second, lambda s: s.reap()), [])
    q.commit()
    expect("on the list", q.value("select count(*) from faultline.workers"), 0)


@probe("dead_workers")
def after_a_restart_everyone_is_given_time_to_come_back(sessions: Sessions) -> None:
    for beaten_at, judged_at, is_judged in ((-5, 29, False), (-5, 31, True), (5, 29, True)):
        sessions.clock.set_since_start(beaten_at)
        q = sessions.open()
        q.beat()
        _claimed_by(q, "w", lease_seconds=3600)
        sessions.clock.set_since_start(judged_at)
        how = f"judged {judged_at} s after a restart, last beat at {beaten_at} s"
        expect(how, bool(q.reap()), is_judged)
        sessions.hand.execute("delete from faultline.open_jobs; delete from faultline.workers")


_PROMOTED = "update faultline.settings set server_run = 'that of another server'"


@probe("dead_workers", "run_noticed_at")
def the_first_to_reap_on_a_new_run_of_the_server_judges_nobody(sessions: Sessions) -> None:
    q, lease = _long_lease(sessions)
    sessions.clock.advance(60)
    sessions.hand.execute(_PROMOTED)
    expect("reaped by the first", q.reap(), [])
    expect("reaped by the next", q.reap(), [])
    sessions.clock.advance(29)
    expect("reaped after 29 s", q.reap(), [])
    sessions.clock.advance(2)
    expect("reaped after 31 s", [job.job_id for job in q.reap()], [lease.job_id])


@probe("dead_workers", "run_noticed_at", "beat")
def who_was_back_on_the_new_run_and_died_is_noticed_at_once(sessions: Sessions) -> None:
    q, lease = _long_lease(sessions)
    sessions.hand.execute(_PROMOTED)
    q.beat("another")
    sessions.clock.advance(1)
    q.beat("another")
    q.beat()
    sessions.clock.advance(3.1)
    expect("reaped", [job.job_id for job in q.reap()], [lease.job_id])


@probe("dead_workers", "run_noticed_at")
def beats_by_a_clock_that_was_ahead_are_not_of_the_new_run(sessions: Sessions) -> None:
    q, _ = _long_lease(sessions)
    sessions.clock.advance(-2)
    sessions.hand.execute(_PROMOTED)
    q.reap()
    sessions.clock.advance(10)
    expect("reaped", q.reap(), [])


@probe("dead_workers", "run_noticed_at", "beat")
def who_notices_a_new_run_waits_for_nobody(sessions: Sessions) -> None:
    q, _ = _long_lease(sessions)
    sessions.clock.advance(60)
    sessions.hand.execute(_PROMOTED)
    sessions.hand.begin()
    sessions.hand.execute("update faultline.settings set token_floor = token_floor")
    expect("reaped beside a lock", sessions.at_once(q, lambda s: s.reap()), [])
    sessions.at_once(q, lambda s: s.beat())
    sessions.hand.rollback()
    expect("noticed by then", q.value("select server_run = faultline.server_run() from faultline.settings"), False)


def _last_attempt(sessions: Sessions, lease_seconds: float) -> tuple[Session, Lease]:
    sessions.clock.set_since_start(60)
    q = sessions.open()
    q.reap()
    sessions.clock.advance(60)
    q.beat()
    lease = _claimed_by(q, "w", max_attempts=1, lease_seconds=lease_seconds)
    q.mark_started(lease)
    return q, lease


@probe("reap")
def a_lease_that_a_living_worker_could_not_renew_costs_nothing(sessions: Sessions) -> None:
    for lease_seconds in (1, 4, 30):
        q, lease = _last_attempt(sessions, lease_seconds)
        sessions.clock.advance(lease_seconds + 2)
        q.beat()
        sessions.clock.advance(0.9)
        expect("reaped while it may still renew", q.reap(), [])
        sessions.clock.advance(0.2)
        expect("reaped", [job.job_id for job in q.reap()], [lease.job_id])
        job = q.job(lease.job_id)
        expect("state, attempt, reaps", (job.state.value, job.attempt, job.reaps), ("queued", 0, 0))
        sessions.hand.execute("delete from faultline.open_jobs; delete from faultline.workers")


@probe("reap")
def the_last_attempt_of_a_silent_worker_counts(sessions: Sessions) -> None:
    for lease_seconds in (3, 4, 30):
        q, lease = _last_attempt(sessions, lease_seconds)
        sessions.clock.advance(lease_seconds)
        q.reap()
        expect(f"after {lease_seconds} s", q.state(lease.job_id), "failed")
        sessions.hand.execute("delete from faultline.open_jobs; delete from faultline.workers")


@probe("reap")
def who_cannot_judge_takes_only_what_costs_nobody_an_attempt(sessions: Sessions) -> None:
    q, started = _last_attempt(sessions, 30)
    waiting = _claimed_by(q, "w", max_attempts=1)
    q.beat("alive")
    alive = _claimed_by(q, "alive", max_attempts=1)
    q.mark_started(alive)
    sessions.clock.advance(60)
    q.beat("alive")
    taken = {job.job_id for job in q.reap(notice_dead=False)}
    expect("taken", taken, {waiting.job_id, alive.job_id})
    expect("of the silent", q.state(started.job_id), "running")
    q.reap()
    expect("judged by another", q.state(started.job_id), "failed")


@probe("reap", "run_noticed_at")
def an_outage_costs_no_attempt_and_leaves_time_to_renew(sessions: Sessions) -> None:
    q, lease = _last_attempt(sessions, 30)
    sessions.clock.advance(40)
    sessions.hand.execute(_PROMOTED)
    expect("reaped at once", q.reap(), [])
    sessions.clock.advance(4.9)
    expect("reaped after 4.9 s", q.reap(), [])
    sessions.clock.advance(0.2)
    expect("reaped after 5.1 s", [job.job_id for job in q.reap()], [lease.job_id])
    job = q.job(lease.job_id)
    expect("state, attempt, reaps", (job.state.value, job.attempt, job.reaps), ("queued", 0, 0))


@probe("reap", "run_noticed_at")
def who_was_back_after_an_outage_or_had_the_time_is_not_excused(sessions: Sessions) -> None:
    q, lease = _last_attempt(sessions, 6)
    sessions.hand.execute(_PROMOTED)
    q.reap()
    sessions.clock.advance(1)
    q.beat()
    sessions.clock.advance(5.1)
    q.reap()
    expect("back and silent again", q.state(lease.job_id), "failed")
    q, lease = _last_attempt(sessions, 60)
    sessions.hand.execute(_PROMOTED)
    q.reap()
    sessions.clock.advance(60)
    q.reap()
    expect("not back after a minute", q.state(lease.job_id), "failed")


@probe("server_run")
def a_run_of_the_server_is_named_by_its_start_and_by_what_it_replayed(sessions: Sessions) -> None:
    q = sessions.open()
    name = q.value("select faultline.server_run()")
    started, replayed = q.execute(
        "select extract(epoch from pg_postmaster_start_time())::text, pg_last_wal_replay_lsn()::text"
    )[0]
    expect("the name", name, f"{started} {replayed or '-'}")


@probe("reap", "dead_workers")
def a_dead_workers_job_that_is_locked_comes_back_later(sessions: Sessions) -> None:
    """Killed inside a statement: its heartbeat's session is gone, the one with the lock on the row is not yet."""
    q, lease = _long_lease(sessions)
    lingering = sessions.open()
    lingering.begin()
    lingering.fence(lease)
    sessions.clock.advance(60)
    expect("reaped beside a lock", sessions.at_once(q, lambda s: s.reap()), [])
    lingering.rollback()
    expect("reaped then", [job.job_id for job in q.reap()], [lease.job_id])
    expect("on the list", q.value("select count(*) from faultline.workers"), 0)


@probe("beat", "leave")
def a_worker_is_on_the_list_as_it_last_said(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    q.beat(watched=False)
    sessions.clock.advance(5)
    words: dict[str, Any] = {"queues": ["mail"], "sleeping": ["mail"], "leases": 7, "clock_ahead_seconds": -1.5}
    answer = q.run(verbs.beat("w", host="h", pid=1, version="0", watched=True, **words))
    expect("the answer to a beat", answer, q.value("select faultline.clock()"))
    q.beat("other")
    found = q.execute(
        "select beat_at = faultline.now(), watched, queues, sleeping, leases, clock_ahead_seconds from faultline.workers"
        " where id = 'w'"
    )
    expect("on the list", found, [(True, True, ["mail"], ["mail"], 7, -1.5)])
    q.run(verbs.leave("w"))
    expect("left", q.value("select array_agg(id) from faultline.workers"), ["other"])


@probe("announce")
def a_worker_is_on_the_list_with_the_tasks_it_last_said(sessions: Sessions) -> None:
    q = sessions.open()
    expect("before the first beat", q.run(verbs.announce("w", ["pay"])), False)
    q.beat("other")
    expect("while others are on the list", q.run(verbs.announce("w", ["pay"])), False)
    q.beat()
    expect("not said", q.value("select tasks from faultline.workers where id = 'w'"), None)
    expect("on the list", q.run(verbs.announce("w", ["pay"])), True)
    expect("said again", q.run(verbs.announce("w", ["pay", "mail"])), True)
    q.beat()
    found = q.execute("select id, tasks from faultline.workers order by id")
    expect("the tasks", found, [("other", None), ("w", ["pay", "mail"])])
    row = "select ctid::text from faultline.workers where id = 'w'"
    before = q.value(row)
    q.run(verbs.announce("w", ["pay", "mail"]))
    expect("written when nothing is new", q.value(row), before)
    q.run(verbs.announce("w", ["pay", "mail"], 24))
    expect("the connections", q.value("select connections_max from faultline.workers where id = 'w'"), 24)


@probe("mark_started", "reap")
def the_mark_is_set_by_mark_started_alone(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        lease = q.new_lease()
        expect("before", q.value("select started from faultline.open_jobs"), False)
        expect("mark_started", q.mark_started(lease), Settled())
        expect("after", q.value("select started from faultline.open_jobs"), True)
