"""The bound from which a reap begins: whatever happens to a lease meanwhile, it stays to be found."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from faultline.store import verbs

if TYPE_CHECKING:
    from tests.driver import Clock, Driver, Sessions


def test_a_bound_leads_from_one_lease_that_ran_out_to_the_next(queue: Driver, clock: Clock) -> None:
    jobs = [queue.enqueue(lease_seconds=seconds) for seconds in (10, 20)]
    queue.claim()
    bound, taken = None, []

    for _ in range(3):
        clock.advance(10)
        bound = queue.run(verbs.first_expired(bound))
        taken += [job.job_id for job in queue.reap(lower_bound=bound)]

    assert taken == jobs
    assert bound == queue.value("select faultline.now()")


def test_a_lease_that_was_passed_over_stays_within_the_bound(queue: Driver, sessions: Sessions, clock: Clock) -> None:
    """Its own transaction had the row when it ran out, and was rolled back later."""
    queue.enqueue()
    lease = queue.claim_one()
    holder = sessions.open()
    holder.begin()
    holder.do(lambda q: q.run(verbs.fence(lease)))
    bound = None

    for _ in range(3):
        clock.advance(31)
        bound = queue.run(verbs.first_expired(bound))
        assert queue.reap(lower_bound=bound) == []
    holder.rollback()

    bound = queue.run(verbs.first_expired(bound))
    assert [job.job_id for job in queue.reap(lower_bound=bound)] == [lease.job_id]


@pytest.mark.parametrize("ending", ["commit", "rollback"])
def test_a_renewal_that_ends_after_its_lease_stays_within_the_bound(
    queue: Driver, sessions: Sessions, clock: Clock, ending: str
) -> None:
    queue.enqueue()
    lease = queue.claim_one()
    holder = sessions.open()
    holder.begin()
    holder.do(lambda q: q.renew(lease))

    clock.advance(60)
    bound = queue.run(verbs.first_expired())
    assert queue.reap(lower_bound=bound) == []
    clock.advance(60)
    bound = queue.run(verbs.first_expired(bound))
    getattr(holder, ending)()

    bound = queue.run(verbs.first_expired(bound))
    assert [job.job_id for job in queue.reap(lower_bound=bound)] == [lease.job_id]


def test_a_claim_that_is_committed_after_its_lease_is_found_without_a_bound(
    queue: Driver, sessions: Sessions, clock: Clock
) -> None:
    """The one kind of lease that a bound can hide."""
    job_id = queue.enqueue()
    claimer = sessions.open()
    claimer.begin()
    claimer.do(lambda q: q.claim_one())
    clock.advance(31)
    bound = queue.run(verbs.first_expired())
    clock.advance(1)
    claimer.commit()

    assert queue.reap(lower_bound=queue.run(verbs.first_expired(bound))) == []

    assert [job.job_id for job in queue.reap(lower_bound=queue.run(verbs.first_expired()))] == [job_id]
