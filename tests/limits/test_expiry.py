"""A job that nobody has claimed in time is cancelled, and a job that was claimed once is not."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from faultline import ConfigError, Faultline, Job, JobRejected, JobState
from faultline.core.ids import Ids
from faultline.core.model import Submission
from faultline.store import verbs
from faultline.testing import drain

if TYPE_CHECKING:
    from tests.driver import Clock, Driver


def enqueue(queue: Driver, **options: Any) -> Any:
    return queue.run(verbs.enqueue_many([Submission("t", **options)]))[0].job_id


def now(queue: Driver) -> Any:
    return queue.value("select faultline.clock()")


def claimed(queue: Driver, owner: str = "w/1") -> list[Any]:
    return [lease.job_id for lease in queue.run(verbs.claim("default", owner=owner, max_jobs=10))]


def state(queue: Driver, job: Any) -> str:
    return str(queue.value("select state from faultline.jobs where id = %s", job))


def test_a_job_that_nobody_claimed_in_time_is_cancelled_and_the_journal_says_so(queue: Driver, clock: Clock) -> None:
    late = enqueue(queue, expires_seconds=60)
    other = enqueue(queue)
    clock.advance(60)

    (expired,) = queue.run(verbs.expire())

    assert (expired.job_id, expired.queue, expired.task) == (late, "default", "t")
    assert state(queue, late) == "cancelled"
    assert state(queue, other) == "queued"
    assert queue.value("select last_error from faultline.jobs where id = %s", late).startswith("expired: no worker")
    assert queue.value("select event from faultline.journal where job_id = %s", late) == "expired"
    assert queue.run(verbs.expire()) == []


def test_a_claim_passes_over_what_has_expired_before_anybody_has_cancelled_it(queue: Driver, clock: Clock) -> None:
    enqueue(queue, expires_seconds=60)
    second = enqueue(queue, expires_seconds=61)
    clock.advance(60)

    assert claimed(queue) == [second]


def test_a_job_that_was_claimed_once_no_longer_expires(queue: Driver, clock: Clock) -> None:
    job = enqueue(queue, expires_seconds=60)
    (lease,) = queue.run(verbs.claim("default", owner="w/1", max_jobs=1))
    queue.run(verbs.release([lease]))
    clock.advance(3600)

    assert queue.run(verbs.expire()) == []
    assert claimed(queue, "w/2") == [job]


def test_a_person_may_retry_an_expired_job(queue: Driver, clock: Clock) -> None:
    job = enqueue(queue, expires_seconds=60)
    clock.advance(60)
    queue.run(verbs.expire())

    queue.value("select faultline.retry(%s)", job)

    assert queue.run(verbs.expire()) == []
    assert claimed(queue) == [job]


def test_a_moment_may_be_given_and_bites_are_bounded(queue: Driver, clock: Clock) -> None:
    at = now(queue) + timedelta(seconds=5)
    jobs = [enqueue(queue, expires_at=at) for _ in range(3)]
    clock.advance(5)

    assert len(queue.run(verbs.expire(max_jobs=2))) == 2
    assert len(queue.run(verbs.expire(max_jobs=2))) == 1
    assert {state(queue, job) for job in jobs} == {"cancelled"}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"expires_seconds": 0}, "outside 0.001"),
        ({"expires_seconds": -5}, "outside 0.001"),
        ({"expires_seconds": 1e12}, "outside 0.001"),
        ({"expires_at": datetime(2001, 1, 1, tzinfo=UTC)}, "has passed already"),
        ({"expires_seconds": 5, "expires_at": datetime(2099, 1, 1, tzinfo=UTC)}, "both expires_seconds and expires_at"),
        ({"expires_seconds": 5, "delay_seconds": 5}, "expires before it may run"),
        ({"expires_seconds": 5, "run_at": datetime(2099, 1, 1, tzinfo=UTC)}, "expires before it may run"),
    ],
)
@pytest.mark.parametrize("ids", [Ids(), None], ids=["fresh", "known"])
def test_what_cannot_be_is_refused_and_nothing_is_enqueued(queue: Driver, options: Any, why: str, ids: Ids | None) -> None:
    jobs = [Submission("t"), Submission("t", **options)]

    with pytest.raises(JobRejected, match=f"job 2 of 2 .*{why}"):
        queue.run(verbs.enqueue_many(jobs, ids))

    assert queue.value("select count(*) from faultline.open_jobs") == 0


def test_plain_sql_that_is_wrong_is_named(queue: Driver) -> None:
    for value, why in (('"2030-01-01 10:00"', "not a time with a time zone"), ('"soon"', "not a time with a time zone")):
        with pytest.raises(psycopg.Error, match=why):
            queue.value("select job_id from faultline.enqueue_many(%s::text)", f'[{{"task": "t", "expires_at": {value}}}]')


@pytest.mark.parametrize("value", [0, -1, "5", True, float("nan"), datetime(2030, 1, 1)])  # noqa: DTZ001
def test_python_refuses_it_where_it_is_written(app: Faultline, value: Any) -> None:
    with pytest.raises(ConfigError, match="expires"):

        @app.task(expires=value)
        def code() -> None: ...


def test_a_task_s_jobs_expire_and_a_drain_cancels_them(app: Faultline, queue: Driver, clock: Clock) -> None:
    ran = []

    @app.task(expires=timedelta(minutes=10))
    def code(user: int) -> None:
        ran.append(user)

    late = code.enqueue(1)
    clock.advance(600)
    code.enqueue(2)
    until = code.options(expires=now(queue) + timedelta(seconds=1)).enqueue(3)

    drained = drain(app)

    assert (ran, drained.cancelled, drained.succeeded) == ([2, 3], 1, 2)
    assert late.job().state is JobState.CANCELLED
    assert until.job().state is JobState.SUCCEEDED


def test_a_parent_hears_that_its_child_has_expired(app: Faultline, queue: Driver, clock: Clock) -> None:
    @app.task(queue="closed", expires=60)
    def child() -> None: ...

    @app.task(max_attempts=1)
    async def parent(job: Job) -> str:
        try:
            await job.call(child)
        except Exception as error:  # noqa: BLE001 - looked at here
            return str(error)
        return "ran"

    handle = parent.enqueue()
    drain(app, "default")
    clock.advance(61)
    drain(app, "default")

    assert "cancelled: expired" in str(handle.job().result)
