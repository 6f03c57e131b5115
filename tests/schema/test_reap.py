"""Crashed work comes back to its place, whoever reaps it, and what its worker writes later is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from faultline.core.model import JobState, Settled, Submission
from faultline.store import verbs
from tests.driver import reasons
from tests.schema.workers import crash_and_reap

if TYPE_CHECKING:
    from tests.driver import Clock, Driver, Sessions


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
