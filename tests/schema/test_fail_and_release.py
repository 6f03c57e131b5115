"""What becomes of a job whose attempt failed, or that was given back unfinished."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from faultline.core.errors import JobRejected
from faultline.core.model import Failure, JobState, Settled, Submission
from faultline.store import verbs

if TYPE_CHECKING:
    from faultline.core.model import Lease
    from tests.driver import Clock, Driver


# fail


def test_a_failed_attempt_is_queued_again_after_its_delay(queue: Driver, clock: Clock) -> None:
    job_id = queue.enqueue()
    lease = queue.claim_one()

    queue.fail(lease, delay=30, error="no route to host")

    job = queue.job(job_id)
    assert (job.state, job.attempt, job.owner, job.last_error) == (JobState.QUEUED, 1, None, "no route to host")
    (entry,) = queue.journal(job_id)
    assert (entry.event, entry.fencing_token, entry.owner) == ("attempt_failed", 1, lease.owner)
    assert (entry.detail["attempt"], entry.detail["error"]) == (1, "no route to host")
    clock.advance(29)
    assert queue.claim() == []
    clock.advance(1)
    assert queue.claim_one().fencing_token == 2


def test_the_last_failed_attempt_ends_the_job_visibly(queue: Driver) -> None:
    job_id = queue.enqueue(max_attempts=2)

    for _ in range(2):
        queue.fail(queue.claim_one())

    job = queue.job(job_id)
    assert (job.state, job.attempt, job.last_error) == (JobState.FAILED, 2, "boom")
    assert job.finished_at is not None
    assert [entry.event for entry in queue.journal(job_id)] == ["attempt_failed"] * 2
    assert queue.claim() == []


@pytest.mark.parametrize(
    ("then", "state", "event"), [("fail", "failed", "attempt_failed"), ("cancel", "cancelled", "cancelled")]
)
def test_a_job_can_end_itself_before_its_attempts_are_used_up(queue: Driver, then: str, state: str, event: str) -> None:
    job_id = queue.enqueue()

    queue.fail(queue.claim_one(), then=then)

    assert queue.state(job_id) == state
    assert [entry.event for entry in queue.journal(job_id)] == [event]


def test_without_a_delay_the_wait_doubles_up_to_an_hour(queue: Driver, clock: Clock) -> None:
    job_id = queue.enqueue(max_attempts=20)
    waits = []

    for _ in range(14):
        queue.fail(queue.claim_one(), delay=None)
        job = queue.job(job_id)
        assert job.next_run_at is not None
        waits.append((job.next_run_at - queue.value("select faultline.now()")).total_seconds())
        clock.advance(3600)

    assert waits == [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 3600, 3600, 3600]


@pytest.mark.parametrize(
    "failures", ["[]", "{}", "null", '[{"then": "explode"}]', "[{}]", '[{"then": "retry", "delay_seconds": -1}]']
)
def test_failures_that_make_no_sense_change_nothing(queue: Driver, failures: str) -> None:
    job_id = queue.enqueue()
    lease = queue.claim_one()

    with pytest.raises(JobRejected, match="failures must be an array"):
        queue.run(_fail_with(lease, failures))

    assert queue.state(job_id) is JobState.RUNNING


def _fail_with(lease: Lease, failures: str) -> Any:
    statement = verbs.fail([lease], [Failure("x")])
    return type(statement)("fail", statement.sql, (*statement.params[:3], failures), statement.read)


def test_an_endless_error_text_is_cut(queue: Driver) -> None:
    job_id = queue.enqueue()

    queue.fail(queue.claim_one(), error="x" * 10_000_000)

    assert len(queue.job(job_id).last_error or "") == 65536


# release


def test_a_released_job_keeps_its_place_and_gets_its_attempt_back(queue: Driver, clock: Clock) -> None:
    first = queue.enqueue()
    clock.advance(5)
    queue.enqueue()
    lease = queue.claim_one()

    assert queue.release(lease) == Settled()

    job = queue.job(first)
    assert (job.state, job.attempt, job.fencing_token, job.owner) == (JobState.QUEUED, 0, 1, None)
    again = queue.claim_one()
    assert (again.job_id, again.fencing_token, again.attempt) == (first, 2, 1)


def test_a_snoozed_job_sleeps_as_long_as_it_asked(queue: Driver, clock: Clock) -> None:
    queue.enqueue()
    queue.release(queue.claim_one(), delays=[60])

    assert queue.claim() == []
    clock.advance(60)

    again = queue.claim_one()
    assert (again.fencing_token, again.attempt) == (2, 1)


def test_snoozing_never_uses_up_attempts_nor_resets_the_token(queue: Driver) -> None:
    queue.enqueue(max_attempts=1)

    tokens = []
    for _ in range(10):
        lease = queue.claim_one()
        tokens.append(lease.fencing_token)
        queue.release(lease, delays=[0])

    assert tokens == list(range(1, 11))


def test_a_negative_snooze_is_refused(queue: Driver) -> None:
    job_id = queue.enqueue()
    lease = queue.claim_one()

    with pytest.raises(JobRejected, match="delay"):
        queue.release(lease, delays=[-1])

    assert queue.state(job_id) is JobState.RUNNING


def test_released_jobs_wake_workers_that_have_claimed_past_them(queue: Driver) -> None:
    queue.run(verbs.enqueue_many([Submission("t"), Submission("t", priority=-2)]))
    leases = queue.claim()
    queue.connection.execute("listen faultline")

    queue.release(*leases)

    (notice,) = queue.connection.notifies(timeout=0)
    assert '"priority" : -2' in notice.payload
