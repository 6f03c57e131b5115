"""A paused queue grants nothing, and everything again once it is resumed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from faultline.core.errors import JobRejected
from faultline.core.model import JobState, Settled
from faultline.store import verbs
from faultline.store.translation import translated

if TYPE_CHECKING:
    from tests.driver import Clock, Driver


def test_a_paused_queue_grants_nothing_until_it_is_resumed(queue: Driver) -> None:
    job_id = queue.enqueue()
    other = queue.enqueue(queue="other")

    queue.run(verbs.pause("default", "the printer is on fire"))
    assert queue.claim() == []
    assert [lease.job_id for lease in queue.claim(queue="other")] == [other]

    assert queue.run(verbs.resume("default"))
    assert [lease.job_id for lease in queue.claim()] == [job_id]


def test_what_runs_goes_on_in_a_paused_queue(queue: Driver) -> None:
    job_id = queue.enqueue()
    lease = queue.claim_one()

    queue.run(verbs.pause("default"))

    assert queue.renew(lease) == Settled()
    assert queue.complete(lease) == Settled()
    assert queue.state(job_id) is JobState.SUCCEEDED


def test_paused_twice_the_first_time_and_the_last_reason_stand(queue: Driver, clock: Clock) -> None:
    first = queue.run(verbs.pause("default", "one"))
    clock.advance(60)

    assert queue.run(verbs.pause("default", "two")) == first
    assert queue.value("select paused_because from faultline.queues") == "two"


def test_resuming_what_is_not_paused_changes_nothing(queue: Driver) -> None:
    assert not queue.run(verbs.resume("default"))


def test_resuming_wakes_who_sleeps_below_any_bound(queue: Driver) -> None:
    queue.connection.execute("listen faultline")
    queue.run(verbs.pause("default"))

    queue.run(verbs.resume("default"))

    (notice,) = list(queue.connection.notifies(timeout=5, stop_after=1))
    assert (
        notice.payload
        == '{"queue" : "default", "priority" : -32768, "run_at" : "1970-01-01T00:00:00+00:00", "workers" : null}'
    )


@pytest.mark.parametrize("name", ["", "x" * 101, None])
def test_a_queue_without_a_sane_name_is_not_paused(queue: Driver, name: str) -> None:
    with pytest.raises(JobRejected, match="1 to 100 characters"), translated():
        queue.run(verbs.pause(name))


@pytest.mark.parametrize("name", [" ", "a ", "\ta", "a\nb"])
def test_a_queue_whose_name_cannot_be_read_is_not_paused(queue: Driver, name: str) -> None:
    with pytest.raises(JobRejected, match="no control characters, and no white space at its ends"), translated():
        queue.run(verbs.pause(name))
