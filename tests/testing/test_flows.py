"""A drain runs flows: what waits for jobs goes on, what waits for a signal stays, and frozen time skips sleeps."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from faultline import Job, JobFailed
from faultline.testing import drain, frozen_time

if TYPE_CHECKING:
    from faultline import Faultline

MONTH = timedelta(days=30)


def test_a_drain_runs_children_and_what_waits_for_them(app: Faultline) -> None:
    @app.task
    async def double(number: int) -> int:
        return 2 * number

    @app.task
    async def total(job: Job, numbers: list[int]) -> int:
        return sum(await job.map(double, numbers))

    handle = total.enqueue([1, 2, 3])
    drained = drain(app)

    assert handle.result(timeout=5) == 12
    assert drained.succeeded == 4


def test_a_signal_between_two_drains_lets_a_job_go_on(app: Faultline) -> None:
    @app.task
    async def ask(job: Job) -> str:
        return await job.receive("answer", str)

    handle = ask.enqueue()
    drain(app)
    assert handle.job().suspended

    handle.signal("answer", "yes")
    drain(app)

    assert handle.result(timeout=5) == "yes"


def test_a_year_of_sleeps_passes_in_one_drain(app: Faultline) -> None:
    @app.task
    async def remind(job: Job) -> int:
        for _ in range(12):
            await job.sleep(MONTH)
        return 12

    with frozen_time(app) as time:
        handle = remind.enqueue()
        drain(app, advancing=time)

        assert handle.result(timeout=5) == 12


def test_a_wait_that_nobody_answers_times_out_in_frozen_time(app: Faultline) -> None:
    @app.task
    async def ask(job: Job) -> str:
        return await job.receive("answer", str, timeout=MONTH)

    with frozen_time(app) as time:
        handle = ask.enqueue()
        drain(app, advancing=time)

        with pytest.raises(JobFailed, match="SignalTimeout"):
            handle.result(timeout=5)
