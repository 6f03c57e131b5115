"""Which attempts a crash uses up: those that may have caused it, and no others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from faultline.core.model import JobState, Settled, Submission
from faultline.store import verbs
from tests.schema.workers import beat, crash_and_reap

if TYPE_CHECKING:
    from tests.driver import Clock, Driver, Sessions


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


def test_a_job_that_only_waited_is_not_suspected_any_further(queue: Driver, clock: Clock) -> None:
    """Outages that last longer than the leases must not make a whole batch run one by one."""
    waited, ran = queue.enqueue(lease_seconds=5), queue.enqueue(lease_seconds=5)
    for _ in range(4):
        leases = queue.claim(2)
        queue.mark_started(*(lease for lease in leases if lease.job_id == ran and lease.mark_start))
        clock.advance(6)
        queue.reap()

    assert (queue.job(waited).reaps, queue.job(ran).reaps) == (1, 4)
