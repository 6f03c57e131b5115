"""A dead worker's jobs come back in seconds, and no living worker is taken for dead."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from faultline.core.model import JobState, Reaped
from faultline.store import verbs
from tests.driver import reasons
from tests.schema.workers import beat, hold_lock, replace_server

if TYPE_CHECKING:
    from uuid import UUID

    from tests.driver import Clock, Driver, Sessions


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
