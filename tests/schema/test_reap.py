"""Crashed work comes back: to its place, with the right number of attempts, whoever reaps it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from faultline.core.model import JobState, Reaped, Settled, Submission
from faultline.store import queue as verbs
from tests.driver import reasons

if TYPE_CHECKING:
    from uuid import UUID

    from tests.driver import Clock, Driver, Sessions


def crash_and_reap(queue: Driver, clock: Clock) -> None:
    clock.advance(31)
    queue.reap()


def test_an_expired_lease_is_taken_back_and_the_job_keeps_its_place(queue: Driver, clock: Clock) -> None:
    job_id = queue.enqueue()
    lease = queue.claim_one()
    clock.advance(30)
    queue.enqueue()
    clock.advance(1)

    (reaped,) = queue.reap()

    assert (reaped.job_id, reaped.fencing_token, reaped.owner) == (job_id, 1, lease.owner)
    assert (reaped.state, reaped.reason) == (JobState.QUEUED, "lease_expired")
    job = queue.job(job_id)
    assert (job.owner, job.lease_expires_at, job.fencing_token) == (None, None, 1)
    (entry,) = queue.journal(job_id)
    assert (entry.event, entry.fencing_token, entry.owner) == ("lease_reaped", 1, lease.owner)
    assert queue.claim_one().job_id == job_id


def test_a_live_lease_is_left_alone(queue: Driver, clock: Clock) -> None:
    queue.enqueue()
    queue.claim_one()
    clock.advance(29.9)

    assert queue.reap() == []


# Zombies


def test_a_zombie_is_refused_even_before_the_next_claim(queue: Driver, clock: Clock) -> None:
    queue.enqueue()
    zombie = queue.claim_one()
    crash_and_reap(queue, clock)

    assert reasons(queue.complete(zombie)) == ["lease_lost"]
    assert reasons(queue.renew(zombie)) == ["lease_lost"]


def test_several_reapers_share_the_work(queue: Driver, sessions: Sessions, clock: Clock) -> None:
    queue.run(verbs.enqueue_many([Submission("t")] * 10))
    queue.claim()
    clock.advance(31)
    first, second = sessions.open(), sessions.open()

    first.begin()
    one = first.do(lambda q: q.reap(max_jobs=6))
    two = second.do(lambda q: q.reap())
    first.commit()

    assert (len(one), len(two)) == (6, 4)
    assert not {job.job_id for job in one} & {job.job_id for job in two}
    assert queue.value("select count(*) from faultline.journal") == 10


def test_a_reaper_does_not_overwrite_a_job_that_completes_meanwhile(queue: Driver, sessions: Sessions, clock: Clock) -> None:
    job_id = queue.enqueue()
    lease = queue.claim_one()
    clock.advance(31)
    worker, reaper = sessions.open(), sessions.open()

    worker.begin()
    assert worker.do(lambda q: q.complete(lease)) == Settled()
    assert reaper.do(lambda q: q.reap()) == []
    worker.commit()

    assert reaper.do(lambda q: q.reap()) == []
    assert queue.state(job_id) is JobState.SUCCEEDED


@pytest.mark.parametrize("verb", ["step", "progress"])
def test_a_step_that_meets_a_reaper_in_mid_flight_waits_and_is_then_refused(
    queue: Driver, sessions: Sessions, clock: Clock, verb: str
) -> None:
    queue.enqueue()
    lease = queue.claim_one()
    clock.advance(31)
    reaper, worker = sessions.open(), sessions.open()
    statement = verbs.step(lease, "s", 1) if verb == "step" else verbs.progress(lease, 1)

    reaper.begin()
    reaper.do(lambda q: q.reap())
    answer = worker.start(lambda q: q.run(statement))
    sessions.wait_until_blocked(worker, answer)
    reaper.commit()

    assert reasons(answer.result()) == ["lease_lost"]
    assert queue.value("select count(*) from faultline.steps") == 0


@pytest.mark.parametrize("verb", ["complete", "renew", "release", "fail", "mark_started"])
def test_a_write_that_meets_a_reaper_in_mid_flight_is_busy_and_then_refused(
    queue: Driver, sessions: Sessions, clock: Clock, verb: str
) -> None:
    queue.enqueue()
    lease = queue.claim_one()
    clock.advance(31)
    reaper = sessions.open()

    reaper.begin()
    reaper.do(lambda q: q.reap())
    assert getattr(queue, verb)(lease) == Settled(busy=[lease])
    reaper.commit()

    assert reasons(getattr(queue, verb)(lease)) == ["lease_lost"]


def test_a_claim_passes_over_jobs_that_a_reaper_is_just_giving_back(queue: Driver, sessions: Sessions, clock: Clock) -> None:
    job_id = queue.enqueue()
    queue.claim_one()
    clock.advance(31)
    reaper = sessions.open()

    reaper.begin()
    reaper.do(lambda q: q.reap())
    assert queue.claim() == []
    reaper.commit()

    assert queue.claim_one().job_id == job_id


def test_reaped_jobs_wake_workers_that_have_claimed_past_them(queue: Driver, clock: Clock) -> None:
    queue.enqueue(priority=-2)
    queue.claim_one()
    queue.connection.execute("listen faultline")

    crash_and_reap(queue, clock)

    (notice,) = queue.connection.notifies(timeout=0)
    assert '"priority" : -2' in notice.payload


# Attempts


def test_an_attempt_that_nobody_saw_start_is_given_back(queue: Driver, clock: Clock) -> None:
    job_id = queue.enqueue()
    queue.claim_one()

    crash_and_reap(queue, clock)

    assert queue.job(job_id).attempt == 0


def test_after_a_crash_the_start_of_every_attempt_is_to_be_marked(queue: Driver, clock: Clock) -> None:
    queue.enqueue()
    assert queue.claim_one().mark_start is False

    crash_and_reap(queue, clock)

    assert queue.claim_one().mark_start is True


def test_a_last_attempt_is_to_be_marked(queue: Driver) -> None:
    queue.enqueue(max_attempts=2)

    first = queue.claim_one()
    queue.fail(first)
    second = queue.claim_one()

    assert (first.mark_start, second.mark_start) == (False, True)


def test_a_started_attempt_counts_when_its_worker_dies(queue: Driver, clock: Clock) -> None:
    job_id = queue.enqueue()
    queue.mark_started(queue.claim_one())

    crash_and_reap(queue, clock)

    assert (queue.job(job_id).state, queue.job(job_id).attempt) == (JobState.QUEUED, 1)


def test_the_mark_of_one_attempt_says_nothing_of_the_next(queue: Driver, clock: Clock) -> None:
    job_id = queue.enqueue()
    started = queue.claim_one()
    queue.mark_started(started)
    queue.fail(started)
    queue.claim_one()

    crash_and_reap(queue, clock)

    assert queue.job(job_id).attempt == 1


def test_of_several_started_attempts_nobody_knows_which_one_killed_the_worker(queue: Driver, clock: Clock) -> None:
    ids = [queue.enqueue(max_attempts=3) for _ in range(3)]
    queue.mark_started(*queue.claim(2, worker="died"))
    queue.mark_started(*queue.claim(1, worker="died alone"))

    crash_and_reap(queue, clock)

    assert [queue.job(job_id).attempt for job_id in ids] == [0, 0, 1]


def test_the_last_of_a_crowd_to_be_taken_back_is_not_the_one_that_killed_the_worker(queue: Driver, clock: Clock) -> None:
    """They are taken back in several bites. What counts is how many had started when the worker died."""
    ids = [queue.enqueue(max_attempts=3) for _ in range(3)]
    queue.mark_started(*queue.claim(3, worker="died"))
    clock.advance(31)

    for _ in ids:
        assert len(queue.reap(max_jobs=1)) == 1

    assert [queue.job(job_id).attempt for job_id in ids] == [0, 0, 0]


def test_one_of_a_crowd_whose_row_was_locked_is_not_the_one_that_killed_the_worker(
    queue: Driver, sessions: Sessions, clock: Clock
) -> None:
    beat(queue)
    ids = [queue.enqueue(max_attempts=3) for _ in range(2)]
    queue.mark_started(*queue.claim(2, worker="w"))
    clock.advance(31)
    somebody = sessions.open()
    somebody.begin()
    somebody.do(lambda q: q.connection.execute("select from faultline.open_jobs where id = %s for update", (ids[0],)))

    queue.reap()
    clock.advance(600)
    somebody.rollback()
    queue.reap()

    assert [queue.job(job_id).attempt for job_id in ids] == [0, 0]


def test_what_was_taken_back_before_a_worker_died_is_no_company(queue: Driver, clock: Clock) -> None:
    """It goes on renewing the other one, and dies of that."""
    for lease_seconds in (10, 60):
        queue.enqueue(max_attempts=3, lease_seconds=lease_seconds)
    lost, kept = sorted(queue.claim(2, worker="w"), key=lambda lease: lease.lease_seconds)
    queue.mark_started(lost, kept)
    clock.advance(20)
    queue.reap()
    clock.advance(1)
    queue.renew(kept)

    clock.advance(61)
    queue.reap()

    assert [queue.job(lease.job_id).attempt for lease in (lost, kept)] == [0, 1]


def test_a_last_attempt_that_was_started_ends_the_job(queue: Driver, clock: Clock) -> None:
    job_id = queue.enqueue(max_attempts=1)
    queue.mark_started(queue.claim_one())

    crash_and_reap(queue, clock)

    job = queue.job(job_id)
    assert (job.state, job.attempt) == (JobState.FAILED, 1)
    assert "worker was lost" in (job.last_error or "")
    assert job.finished_at is not None


def test_a_last_attempt_that_was_only_prefetched_is_given_back_for_ever(queue: Driver, clock: Clock) -> None:
    job_id = queue.enqueue(max_attempts=1)

    for _ in range(20):
        queue.claim_one()
        crash_and_reap(queue, clock)

    job = queue.job(job_id)
    assert (job.state, job.attempt, job.fencing_token) == (JobState.QUEUED, 0, 20)


def test_a_poison_job_stops_and_the_innocents_beside_it_succeed(queue: Driver, clock: Clock) -> None:
    """Every worker prefetches everything, runs the poison job first and dies of it."""
    poison = queue.enqueue("poison", priority=-1, max_attempts=3)
    innocents = [place.job_id for place in queue.run(verbs.enqueue_many([Submission("t", max_attempts=3)] * 99))]

    deaths = 0
    while queue.state(poison) is JobState.QUEUED:
        leases = queue.claim()
        assert leases[0].job_id == poison
        if leases[0].mark_start:
            queue.mark_started(leases[0])
        deaths += 1
        crash_and_reap(queue, clock)

    assert (queue.state(poison), deaths) == (JobState.FAILED, 4)
    assert {queue.job(job_id).attempt for job_id in innocents} == {0}
    leases = queue.claim()
    assert queue.complete(*leases) == Settled()
    assert {queue.state(job_id) for job_id in innocents} == {JobState.SUCCEEDED}


# Dead workers


def beat(queue: Driver, *, watched: bool = True, worker: str = "w") -> None:
    queue.run(verbs.beat(worker, host="host", pid=1, version="0", queues=["default"], sleeping=[], watched=watched))


def hold_lock(queue: Driver, worker: str = "w") -> None:
    queue.connection.execute("select pg_advisory_lock(faultline.worker_lock(%s))", (worker,))


@pytest.fixture
def job_of_w(queue: Driver, sessions: Sessions, clock: Clock) -> UUID:
    """A long lease of a worker that beats and holds its lock on a session of its own."""
    queue.reap()
    clock.advance(60)  # the server has been up for a while
    return queue.enqueue(lease_seconds=3600)


def test_a_dead_workers_jobs_come_back_in_seconds_however_long_their_leases(
    queue: Driver, sessions: Sessions, clock: Clock, job_of_w: UUID
) -> None:
    worker = sessions.open()
    worker.do(hold_lock)
    beat(queue)
    queue.claim_one(worker="w")

    worker.close()
    clock.advance(3.1)
    (reaped,) = _reap_when_noticed(queue)

    assert (reaped.job_id, reaped.reason) == (job_of_w, "worker_lost")
    assert queue.value("select count(*) from faultline.workers") == 0
    assert queue.value("select detail ->> 'host' from faultline.journal where event = 'worker_lost'") == "host"


def _reap_when_noticed(queue: Driver) -> list[Reaped]:
    """The server frees a dead session's lock a moment after the session is gone."""
    for _ in range(10_000):
        reaped = queue.reap()
        if reaped:
            return reaped
    raise AssertionError("the worker's death was never noticed")


def test_a_dead_workers_job_whose_row_is_locked_comes_back_later(
    queue: Driver, sessions: Sessions, clock: Clock, job_of_w: UUID
) -> None:
    """Killed inside a statement: its heartbeat's session is gone, the one with the lock on the row is not yet."""
    beat(queue)
    lease = queue.claim_one(worker="w")
    lingering = sessions.open()
    lingering.begin()
    lingering.do(lambda q: q.run(verbs.fence(lease)))
    clock.advance(60)

    assert queue.reap() == []
    lingering.rollback()

    assert [job.job_id for job in queue.reap()] == [job_of_w]
    assert queue.value("select count(*) from faultline.workers") == 0


def test_a_worker_that_reaps_on_its_own_session_does_not_bury_itself(queue: Driver, clock: Clock, job_of_w: UUID) -> None:
    hold_lock(queue)
    beat(queue)
    queue.claim_one(worker="w")
    clock.advance(60)

    assert queue.reap() == []


def test_a_silent_worker_whose_session_lives_is_not_dead(
    queue: Driver, sessions: Sessions, clock: Clock, job_of_w: UUID
) -> None:
    worker = sessions.open()
    worker.do(hold_lock)
    beat(queue)
    queue.claim_one(worker="w")

    clock.advance(600)

    assert queue.reap() == []
    assert queue.state(job_of_w) is JobState.RUNNING


def test_a_worker_that_has_just_beaten_is_not_dead_though_its_lock_is_free(
    queue: Driver, clock: Clock, job_of_w: UUID
) -> None:
    beat(queue)
    queue.claim_one(worker="w")

    clock.advance(2.9)

    assert queue.reap() == []
    assert queue.state(job_of_w) is JobState.RUNNING


def test_a_worker_behind_a_pooler_is_never_judged_by_its_lock(queue: Driver, clock: Clock, job_of_w: UUID) -> None:
    beat(queue, watched=False)
    queue.claim_one(worker="w")

    clock.advance(600)

    assert queue.reap() == []
    assert queue.state(job_of_w) is JobState.RUNNING


@pytest.mark.parametrize(("beaten_at", "is_judged"), [(-5, False), (5, True)])
def test_who_has_not_come_back_since_the_server_restarted_is_given_time(
    queue: Driver,
    clock: Clock,
    beaten_at: int,
    is_judged: bool,  # noqa: FBT001
) -> None:
    queue.enqueue(lease_seconds=3600)
    beat(queue)
    queue.claim_one(worker="w")
    clock.advance(5)
    replace_server(queue)
    queue.reap()
    if beaten_at > 0:
        clock.advance(beaten_at)
        beat(queue)

    clock.advance(29 - max(0, beaten_at))
    assert bool(queue.reap()) is is_judged

    clock.advance(2)
    assert bool(queue.reap()) is not is_judged


def replace_server(queue: Driver) -> None:
    """As after a restart or a promotion: the name of the run in the table is that of another one, and no lock is held."""
    queue.connection.execute("update faultline.settings set server_run = 'that of another server'")


def test_the_first_reap_on_a_new_run_of_the_server_judges_nobody(queue: Driver, clock: Clock, job_of_w: UUID) -> None:
    """Whatever its caller had decided before the outage, and however long ago this server was started."""
    beat(queue)
    queue.claim_one(worker="w")
    clock.advance(60)
    replace_server(queue)

    assert queue.reap(notice_dead=True) == []
    assert queue.reap(notice_dead=True) == []
    assert queue.state(job_of_w) is JobState.RUNNING


def test_a_heartbeat_by_a_clock_that_was_ahead_is_not_one_of_the_new_run(
    queue: Driver, clock: Clock, job_of_w: UUID
) -> None:
    beat(queue)
    queue.claim_one(worker="w")
    clock.advance(-2)
    replace_server(queue)
    queue.reap()

    clock.advance(10)

    assert queue.reap() == []
    assert queue.state(job_of_w) is JobState.RUNNING


def test_a_reap_that_notices_a_new_run_waits_for_nobody(
    queue: Driver, sessions: Sessions, clock: Clock, job_of_w: UUID
) -> None:
    beat(queue)
    queue.claim_one(worker="w")
    clock.advance(60)
    replace_server(queue)
    holder = sessions.open()
    holder.begin()
    holder.do(lambda q: q.connection.execute("select from faultline.settings for update"))

    assert queue.reap() == []
    holder.rollback()
    assert queue.reap() == []

    assert queue.state(job_of_w) is JobState.RUNNING


# What the database did counts against no job


def last_attempt(queue: Driver, clock: Clock, *, lease_seconds: float) -> UUID:
    """The only attempt of a job has started, under a worker that had its heartbeats on a server that was up for a while."""
    queue.reap()
    clock.advance(60)
    job_id = queue.enqueue(max_attempts=1, lease_seconds=lease_seconds)
    beat(queue)
    queue.mark_started(queue.claim_one(worker="w"))
    return job_id


def given_back(queue: Driver, job_id: UUID) -> bool:
    job = queue.job(job_id)
    return (job.state, job.attempt, job.reaps) == (JobState.QUEUED, 0, 0)


@pytest.mark.parametrize("lease_seconds", [1, 4, 30])
def test_a_lease_that_a_living_worker_could_not_renew_costs_no_attempt(
    queue: Driver, clock: Clock, lease_seconds: float
) -> None:
    """Its renewals were refused, or waited for a lock; its heartbeats were not."""
    job_id = last_attempt(queue, clock, lease_seconds=lease_seconds)
    clock.advance(lease_seconds + 2)
    beat(queue)
    clock.advance(0.9)
    assert queue.reap() == []  # it may still renew: a transaction of the job's may have kept it from that
    clock.advance(0.2)

    (reaped,) = queue.reap()

    assert (reaped.state, reaped.reason) == (JobState.QUEUED, "lease_expired")
    assert given_back(queue, job_id)


@pytest.mark.parametrize("lease_seconds", [3, 4, 30])
def test_the_last_attempt_of_a_worker_without_heartbeats_ends_the_job(
    queue: Driver, clock: Clock, lease_seconds: float
) -> None:
    job_id = last_attempt(queue, clock, lease_seconds=lease_seconds)

    clock.advance(lease_seconds)
    queue.reap()

    assert queue.state(job_id) is JobState.FAILED


def test_after_an_outage_workers_may_renew_before_their_leases_are_taken(queue: Driver, clock: Clock) -> None:
    job_id = last_attempt(queue, clock, lease_seconds=30)
    clock.advance(40)
    replace_server(queue)

    assert queue.reap() == []
    clock.advance(4.9)
    assert queue.reap() == []
    assert queue.state(job_id) is JobState.RUNNING

    clock.advance(0.2)
    assert [job.job_id for job in queue.reap()] == [job_id]
    assert given_back(queue, job_id)


def test_a_worker_that_came_back_after_an_outage_and_fell_silent_is_not_excused(queue: Driver, clock: Clock) -> None:
    job_id = last_attempt(queue, clock, lease_seconds=6)
    replace_server(queue)
    queue.reap()
    clock.advance(1)
    beat(queue)

    clock.advance(5.1)
    queue.reap()

    assert queue.state(job_id) is JobState.FAILED


def test_a_worker_that_does_not_come_back_after_an_outage_is_excused_for_half_a_minute(queue: Driver, clock: Clock) -> None:
    job_id = last_attempt(queue, clock, lease_seconds=60)
    replace_server(queue)
    queue.reap()

    clock.advance(60)
    queue.reap()

    assert queue.state(job_id) is JobState.FAILED


def test_a_caller_that_has_only_just_come_back_ends_no_attempt_of_the_silent(queue: Driver, clock: Clock) -> None:
    """It cannot tell a dead worker from one whose heartbeats were refused as its own were. What costs nobody is taken."""
    job_id = last_attempt(queue, clock, lease_seconds=30)
    waiting = queue.enqueue(max_attempts=1)
    queue.claim_one(worker="w")
    clock.advance(60)

    assert [job.job_id for job in queue.reap(notice_dead=False)] == [waiting]
    assert queue.state(job_id) is JobState.RUNNING

    assert [job.job_id for job in queue.reap()] == [job_id]
    assert queue.state(job_id) is JobState.FAILED


def test_a_caller_that_has_only_just_come_back_takes_what_the_living_cannot_renew(queue: Driver, clock: Clock) -> None:
    job_id = last_attempt(queue, clock, lease_seconds=30)
    clock.advance(60)
    beat(queue)

    queue.reap(notice_dead=False)

    assert given_back(queue, job_id)


def test_a_caller_that_has_only_just_come_back_can_leave_the_dead_alone(queue: Driver, clock: Clock, job_of_w: UUID) -> None:
    beat(queue)
    queue.claim_one(worker="w")
    clock.advance(60)

    assert queue.reap(notice_dead=False) == []
    assert [job.job_id for job in queue.reap()] == [job_of_w]


def test_only_the_dead_workers_jobs_are_taken(queue: Driver, clock: Clock, job_of_w: UUID) -> None:
    beat(queue)
    queue.claim_one(worker="w")
    other = queue.enqueue(lease_seconds=3600)
    queue.claim_one(worker="w2")
    clock.advance(60)

    assert [job.job_id for job in queue.reap()] == [job_of_w]
    assert queue.state(other) is JobState.RUNNING


def test_a_worker_that_was_taken_for_dead_can_come_back(queue: Driver, clock: Clock, job_of_w: UUID) -> None:
    beat(queue)
    lease = queue.claim_one(worker="w")
    clock.advance(60)
    queue.reap()

    beat(queue)

    assert queue.value("select array_agg(id) from faultline.workers") == ["w"]
    assert reasons(queue.complete(lease)) == ["lease_lost"]
    assert queue.state(job_of_w) is JobState.QUEUED


def test_a_worker_that_leaves_is_off_the_list(queue: Driver) -> None:
    beat(queue)

    queue.run(verbs.leave("w"))

    assert queue.value("select count(*) from faultline.workers") == 0


def test_a_job_that_only_waited_is_not_suspected_any_further(queue: Driver, clock: Clock) -> None:
    """Outages that last longer than the leases must not make a whole batch run one by one."""
    waited, ran = queue.enqueue(lease_seconds=5), queue.enqueue(lease_seconds=5)
    for _ in range(4):
        leases = queue.claim(2)
        queue.mark_started(*(lease for lease in leases if lease.job_id == ran and lease.mark_start))
        clock.advance(6)
        queue.reap()

    assert (queue.job(waited).reaps, queue.job(ran).reaps) == (1, 4)
