"""What the database did counts against no job."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from faultline.core.model import JobState
from tests.schema.workers import beat, replace_server

if TYPE_CHECKING:
    from uuid import UUID

    from tests.driver import Clock, Driver


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
