"""A notification is a hint: the heartbeat asks the database before a lease is lost by it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

from faultline.store import verbs
from faultline.worker.lease.cancellation_checks import CancellationChecks
from tests.worker.beating import Time, hold_of, renewals

if TYPE_CHECKING:
    from faultline.worker.lease.heartbeat import Heartbeat
    from tests.driver import Driver


def test_a_cancelled_job_is_lost_at_once_and_without_a_refusal(queue: Driver, heartbeat: Heartbeat, time: Time) -> None:
    hold = hold_of(queue, time)
    heartbeat.keep([hold])
    queue.run(verbs.cancel(hold.lease.job_id))

    heartbeat.doubt({hold.lease.job_id})
    heartbeat.tick()

    assert hold.lost == "not_running"
    assert queue.refusals(hold.lease.job_id) == []


def test_a_job_that_is_cancelled_before_the_answer_to_its_claim_has_come_is_lost_at_once(
    queue: Driver, heartbeat: Heartbeat, time: Time
) -> None:
    hold = hold_of(queue, time)
    queue.run(verbs.cancel(hold.lease.job_id))

    heartbeat.doubt({hold.lease.job_id})
    heartbeat.keep([hold])
    pulse: Any = heartbeat._pulse  # noqa: SLF001 - does not wait for the next beat
    assert pulse.woken == 1
    heartbeat.tick()

    assert hold.lost == "not_running"


def test_of_a_flood_of_cancelled_jobs_the_last_ones_are_remembered(queue: Driver, time: Time) -> None:
    first, last, doubts = hold_of(queue, time).lease, hold_of(queue, time).lease, CancellationChecks()
    doubts.add({first.job_id}, [])
    for _ in range(30):
        doubts.add({uuid4() for _ in range(100)}, [])
    doubts.add({last.job_id}, [])

    assert doubts.took([first, last])
    assert doubts.due(0.0, [first, last]) == [last]


def test_a_lie_about_a_job_loses_no_lease(queue: Driver, heartbeat: Heartbeat, time: Time) -> None:
    hold = hold_of(queue, time)
    heartbeat.keep([hold])

    heartbeat.doubt({hold.lease.job_id, uuid4()})
    heartbeat.tick()

    assert hold.lost is None
    assert renewals(queue, hold) == 0


def test_a_lease_is_looked_at_by_its_token_and_owner(queue: Driver, heartbeat: Heartbeat, time: Time) -> None:
    """The job runs, but under somebody else's lease by now."""
    hold = hold_of(queue, time)
    heartbeat.keep([hold])
    queue.release(hold.lease)
    queue.claim_one(worker="another")

    heartbeat.doubt({hold.lease.job_id})
    heartbeat.tick()

    assert hold.lost == "token_mismatch"


def test_a_flood_of_lies_costs_one_look_a_second_for_each_lease(queue: Driver, time: Time) -> None:
    lease, doubts, looks = hold_of(queue, time).lease, CancellationChecks(), 0

    for tenth in range(40):
        doubts.add({lease.job_id}, [lease])
        due = doubts.due(tenth / 10, [lease])
        doubts.answered(due, tenth / 10)
        looks += len(due)

    assert looks == 4
