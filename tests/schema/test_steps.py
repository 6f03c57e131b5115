"""Steps are remembered for every later attempt; progress is shown while the job runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from faultline.core.errors import JobRejected
from faultline.core.model import Settled
from faultline.store import verbs

if TYPE_CHECKING:
    from tests.driver import Driver


def test_a_step_is_remembered_for_every_later_attempt(queue: Driver) -> None:
    queue.enqueue()
    first = queue.claim_one()
    assert queue.run(verbs.recall(first, "quote")) == (False, None)

    queue.run(verbs.step(first, "quote", {"price": 9}))
    queue.fail(first)

    second = queue.claim_one()
    assert queue.run(verbs.recall(second, "quote")) == (True, {"price": 9})


def test_a_step_is_recorded_once_per_job_whichever_attempt_comes_first(queue: Driver) -> None:
    queue.enqueue()
    first = queue.claim_one()
    queue.run(verbs.step(first, "quote", "first"))
    queue.release(first)
    second = queue.claim_one()

    assert queue.run(verbs.step(second, "quote", "second")) == Settled()

    assert queue.run(verbs.recall(second, "quote")) == (True, "first")
    assert queue.value("select fencing_token from faultline.steps") == 1


def test_a_step_may_give_nothing(queue: Driver) -> None:
    queue.enqueue()
    lease = queue.claim_one()

    queue.run(verbs.step(lease, "sent", None))

    assert queue.run(verbs.recall(lease, "sent")) == (True, None)


def test_progress_is_shown_while_the_job_runs(queue: Driver) -> None:
    job_id = queue.enqueue()
    lease = queue.claim_one()

    queue.run(verbs.progress(lease, {"percent": 10}))
    queue.run(verbs.progress(lease, {"percent": 20}))

    assert queue.job(job_id).progress == {"percent": 20}


def test_progress_is_no_place_for_data(queue: Driver) -> None:
    queue.enqueue()

    with pytest.raises(JobRejected, match="65536 bytes"):
        queue.run(verbs.progress(queue.claim_one(), "x" * 70_000))
