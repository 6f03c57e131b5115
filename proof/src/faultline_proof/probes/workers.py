"""The list of workers: who on it is dead, who only had no time to come back, and what that costs their jobs."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from faultline.store import verbs
from faultline_proof.probes.probe import expect, probe, reasons, the_one

if TYPE_CHECKING:
    from faultline.core.model import Lease
    from faultline_proof.sessions import Session, Sessions


def _long_lease(sessions: Sessions, worker: str = "w", *, watched: bool = True) -> tuple[Session, Lease]:
    """A lease of an hour, of a worker that beats, on a server that has been up for a while."""
    sessions.clock.set_since_start(60)
    q = sessions.open()
    q.heartbeat(worker, watched=watched)
    return q, q.new_lease(worker=worker, lease_seconds=3600)


@probe("dead_workers", "reap", "worker_lock", "heartbeat", "lost_jobs", "remove_dead_workers")
def a_dead_workers_jobs_come_back_and_only_they(sessions: Sessions) -> None:
    q, lease = _long_lease(sessions)
    alive, _ = _long_lease(sessions, "alive")
    alive.lock_as("alive")
    unknown = q.new_lease(worker="unknown", lease_seconds=4)
    died = sessions.open()
    died.lock_as()
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
    q.heartbeat()
    expect("back on the list", q.value("select array_agg(id order by id) from faultline.workers"), ["alive", "w"])
    expect("its completion", reasons(q.complete(lease)), ["lease_lost"])


@probe("reap", "lost_jobs")
def a_bound_keeps_nothing_of_the_dead(sessions: Sessions) -> None:
    q, lease = _long_lease(sessions)
    sessions.clock.advance(60)
    bound = q.value("select lease_expires_at + interval '1 hour' from faultline.open_jobs where id = %s", lease.job_id)
    expect("reaped", [job.job_id for job in q.reap(lower_bound=bound)], [lease.job_id])


@probe("reap")
def a_dead_worker_that_held_nothing_is_taken_off_the_list(sessions: Sessions) -> None:
    q, died = sessions.open(), sessions.open()
    sessions.clock.take()
    q.reap()  # notices the run of the server
    sessions.clock.advance(0.1)
    died.heartbeat()
    died.lock_as()
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
    silent, _ = _long_lease(sessions, "silent")
    silent.lock_as("silent")
    q.heartbeat()
    sessions.clock.advance(600)
    q.heartbeat()
    expect("reaped behind a pooler, and of a silent session that lives", pooled.reap(), [])


@probe("dead_workers")
def who_reaps_on_his_own_session_does_not_bury_himself(sessions: Sessions) -> None:
    q, _ = _long_lease(sessions)
    q.lock_as()
    _, other = _long_lease(sessions, "other")
    sessions.clock.advance(60)
    expect("reaped", [job.job_id for job in q.reap()], [other.job_id])


@probe("dead_workers")
def two_reapers_do_not_both_bury_a_worker(sessions: Sessions) -> None:
    q, lease = _long_lease(sessions)
    second = sessions.open()
    second.heartbeat("idle")
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
        q.heartbeat()
        q.new_lease(worker="w", lease_seconds=3600)
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


@probe("dead_workers", "run_noticed_at", "heartbeat")
def who_was_back_on_the_new_run_and_died_is_noticed_at_once(sessions: Sessions) -> None:
    q, lease = _long_lease(sessions)
    sessions.hand.execute(_PROMOTED)
    q.heartbeat("another")
    sessions.clock.advance(1)
    q.heartbeat("another")
    q.heartbeat()
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


@probe("dead_workers", "run_noticed_at", "heartbeat")
def who_notices_a_new_run_waits_for_nobody(sessions: Sessions) -> None:
    q, _ = _long_lease(sessions)
    sessions.clock.advance(60)
    sessions.hand.execute(_PROMOTED)
    sessions.hand.begin()
    sessions.hand.execute("update faultline.settings set token_floor = token_floor")
    expect("reaped beside a lock", sessions.at_once(q, lambda s: s.reap()), [])
    sessions.at_once(q, lambda s: s.heartbeat())
    sessions.hand.rollback()
    expect("noticed by then", q.value("select server_run = faultline.server_run() from faultline.settings"), False)


def _last_attempt(sessions: Sessions, lease_seconds: float) -> tuple[Session, Lease]:
    sessions.clock.set_since_start(60)
    q = sessions.open()
    q.reap()
    sessions.clock.advance(60)
    q.heartbeat()
    lease = q.new_lease(worker="w", max_attempts=1, lease_seconds=lease_seconds)
    q.record_start(lease)
    return q, lease


@probe("reap", "lost_jobs")
def a_lease_that_a_living_worker_could_not_renew_costs_nothing(sessions: Sessions) -> None:
    for lease_seconds in (1, 4, 30):
        q, lease = _last_attempt(sessions, lease_seconds)
        sessions.clock.advance(lease_seconds + 2)
        q.heartbeat()
        sessions.clock.advance(0.9)
        expect("reaped while it may still renew", q.reap(), [])
        sessions.clock.advance(0.2)
        expect("reaped", [job.job_id for job in q.reap()], [lease.job_id])
        job = q.job(lease.job_id)
        expect("state, attempt, reaps", (job.state.value, job.attempt, job.reaps), ("queued", 0, 0))
        sessions.hand.execute("delete from faultline.open_jobs; delete from faultline.workers")


@probe("reap", "lost_jobs")
def the_last_attempt_of_a_silent_worker_counts(sessions: Sessions) -> None:
    # The last beat may be later than the last renewal, which a lock has kept off. And behind a pooler nobody is known dead.
    for lease_seconds, beaten_after in ((3, 0), (4, 0), (30, 0), (30, 24.9)):
        q, lease = _last_attempt(sessions, lease_seconds)
        sessions.clock.advance(beaten_after)
        q.heartbeat(watched=False)
        sessions.clock.advance(lease_seconds - beaten_after)
        q.reap()
        expect(f"after {lease_seconds} s, a beat after {beaten_after} s", q.state(lease.job_id), "failed")
        sessions.hand.execute("delete from faultline.open_jobs; delete from faultline.workers")


@probe("reap", "lost_jobs")
def who_cannot_judge_takes_only_what_costs_nobody_an_attempt(sessions: Sessions) -> None:
    q, started = _last_attempt(sessions, 30)
    waiting = q.new_lease(worker="w", max_attempts=1)
    q.heartbeat("alive")
    alive = q.new_lease(worker="alive", max_attempts=1)
    q.record_start(alive)
    sessions.clock.advance(60)
    q.heartbeat("alive")
    taken = {job.job_id for job in q.reap(notice_dead=False)}
    expect("taken", taken, {waiting.job_id, alive.job_id})
    expect("of the silent", q.state(started.job_id), "running")
    q.reap()
    expect("judged by another", q.state(started.job_id), "failed")


@probe("reap", "run_noticed_at", "lost_jobs")
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


@probe("reap", "run_noticed_at", "lost_jobs")
def who_was_back_after_an_outage_or_had_the_time_is_not_excused(sessions: Sessions) -> None:
    q, lease = _last_attempt(sessions, 6)
    sessions.hand.execute(_PROMOTED)
    q.reap()
    sessions.clock.advance(1)
    q.heartbeat()
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


@probe("reap", "dead_workers", "remove_dead_workers")
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


@probe("reap", "remove_dead_workers")
def a_locked_row_of_one_dead_worker_keeps_no_other_from_coming_back(sessions: Sessions) -> None:
    q, lease = _long_lease(sessions)
    _, other = _long_lease(sessions, "other")
    sessions.clock.advance(60)
    somebody = sessions.open()
    somebody.begin()
    somebody.execute("select from faultline.workers where id = 'other' for update")
    taken = {job.job_id for job in sessions.at_once(q, lambda s: s.reap())}
    expect("reaped beside a lock", taken, {lease.job_id, other.job_id})
    expect("on the list", q.value("select array_agg(id) from faultline.workers"), ["other"])
    somebody.rollback()
    q.reap()
    expect("on the list then", q.value("select count(*) from faultline.workers"), 0)


@probe("reap", "dead_workers")
def who_expects_an_earlier_time_judges_nobody_by_a_clock_that_was_set_forward(sessions: Sessions) -> None:
    q, started = _last_attempt(sessions, 30)
    q.heartbeat(watched=False)
    q.heartbeat("watched")
    long = q.new_lease(worker="watched", lease_seconds=3600)
    expected = q.value("select faultline.clock() + interval '1 second'")
    sessions.clock.advance(600)
    expect("reaped by who expects another time", q.reap(latest=lambda: expected), [])
    expected += timedelta(seconds=2.2)
    expect("reaped of a session that has ended", [job.job_id for job in q.reap(latest=lambda: expected)], [long.job_id])
    expected += timedelta(seconds=30)
    expect("reaped by its time", [job.job_id for job in q.reap(latest=lambda: expected)], [started.job_id])


@probe("reap")
def who_expects_a_later_time_judges_by_the_clock(sessions: Sessions) -> None:
    q, started = _last_attempt(sessions, 30)
    ahead = q.value("select faultline.clock() + interval '1 hour'")
    sessions.clock.advance(2.9)
    expect("reaped", q.reap(latest=lambda: ahead), [])
    expect("its job", q.state(started.job_id), "running")


@probe("heartbeat", "unregister_worker")
def a_worker_is_on_the_list_as_it_last_said(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    q.heartbeat(watched=False)
    sessions.clock.advance(5)
    words: dict[str, Any] = {"queues": ["mail"], "sleeping": ["mail"], "leases": 7, "clock_ahead_seconds": -1.5}
    answer = q.run(verbs.heartbeat("w", host="h", pid=1, version="0", watched=True, **words))
    expect("the answer to a beat", answer, q.value("select faultline.clock()"))
    q.heartbeat("other")
    found = q.execute(
        "select heartbeat_at = faultline.now(), watched, queues, sleeping, leases, clock_ahead_seconds from"
        " faultline.workers"
        " where id = 'w'"
    )
    expect("on the list", found, [(True, True, ["mail"], ["mail"], 7, -1.5)])
    q.run(verbs.unregister_worker("w"))
    expect("left", q.value("select array_agg(id) from faultline.workers"), ["other"])


@probe("announce")
def a_worker_is_on_the_list_with_the_tasks_it_last_said(sessions: Sessions) -> None:
    q = sessions.open()
    expect("before the first beat", q.run(verbs.announce("w", ["pay"])), False)
    q.heartbeat("other")
    expect("while others are on the list", q.run(verbs.announce("w", ["pay"])), False)
    q.heartbeat()
    expect("not said", q.value("select tasks from faultline.workers where id = 'w'"), None)
    expect("on the list", q.run(verbs.announce("w", ["pay"])), True)
    expect("said again", q.run(verbs.announce("w", ["pay", "mail"])), True)
    q.heartbeat()
    found = q.execute("select id, tasks from faultline.workers order by id")
    expect("the tasks", found, [("other", None), ("w", ["pay", "mail"])])
    row = "select ctid::text from faultline.workers where id = 'w'"
    before = q.value(row)
    q.run(verbs.announce("w", ["pay", "mail"]))
    expect("written when nothing is new", q.value(row), before)
    q.run(verbs.announce("w", ["pay", "mail"], 24))
    expect("the connections", q.value("select connections_max from faultline.workers where id = 'w'"), 24)
