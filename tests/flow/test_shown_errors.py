"""What people see of a step that failed: where it raised, in the error of the job, in tracebacks and in the log."""

from __future__ import annotations

import contextlib
import traceback
from decimal import Decimal
from typing import TYPE_CHECKING

from faultline import Job, JobState, StepFailed
from tests.flow.running import ended
from tests.flow.test_declared_errors import Declined

if TYPE_CHECKING:
    import pytest

    from faultline import Faultline


def test_the_error_of_a_job_shows_where_its_step_raised_before_where_faultline_did(app: Faultline) -> None:
    @app.step
    def charge() -> None:
        raise ValueError("no such card")

    @app.task(max_attempts=1)
    async def program(job: Job) -> None:
        await job.do(charge)

    handle = program.enqueue()
    ended(app, handle)
    lines = str(handle.job().last_error).splitlines()

    assert lines[0] == "StepFailed: step charge failed: ValueError: no such card"
    files = [line for line in lines if 'File "' in line]
    assert [line.rpartition(" in ")[2] for line in files] == ["charge", "program"]
    assert all(__file__ in line for line in files)


def test_the_log_has_the_whole_traceback_of_a_step_that_failed(app: Faultline, caplog: pytest.LogCaptureFixture) -> None:
    @app.step(raises=Declined)
    def charge() -> None:
        raise Declined(1, Decimal(1)) from OSError("the wire")

    @app.task
    async def program(job: Job) -> None:
        with contextlib.suppress(Declined):
            await job.do(charge)
        await job.sleep(0.01)

    ended(app, program.enqueue())

    (record,) = [one for one in caplog.records if getattr(one, "faultline_event", "") == "step_failed"]
    fields = record.__dict__["faultline_fields"]
    assert (fields["step"], fields["tries"]) == ("charge", 1)
    assert "OSError: the wire" in fields["error"]
    assert "Declined: declined with 1" in fields["error"]


def test_the_traceback_that_python_prints_says_where_the_step_raised(app: Faultline) -> None:
    printed: list[str] = []

    @app.step
    def charge() -> None:
        raise ValueError("no such card")

    @app.task
    async def program(job: Job) -> None:
        try:
            await job.do(charge)
        except StepFailed as error:
            printed.append("".join(traceback.format_exception(error)))

    handle = program.enqueue()
    ended(app, handle)

    assert handle.job().state is JobState.SUCCEEDED
    assert "in charge" in printed[0]
