"""What PostgreSQL can hold and Python cannot: the job fails once, for good, says why, and harms no other."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from faultline import Faultline, Job, JobFailed
from faultline.core.errors import UnreadableJson
from faultline.store.translation import is_about_data
from tests.worker.working import PATIENCE, results, work

if TYPE_CHECKING:
    from tests.driver import Driver

_DEEP = f'{{"value": {"[" * 1500}{"]" * 1500}}}'
_LONG = f'{{"value": {"9" * 5000}}}'


@pytest.mark.parametrize(
    ("text", "why"),
    [('{"value": 1e400}', "infinity"), (_DEEP, "depth"), (_LONG, "4300 digits")],
    ids=["infinite", "deep", "long"],
)
def test_arguments_that_cannot_be_read_fail_their_job_for_good_and_no_other(
    app: Faultline, queue: Driver, text: str, why: str
) -> None:
    @app.task
    async def take(value: Any) -> Any:
        return value

    bad = queue.value("select faultline.enqueue('take', %s)", text)
    handles = [app.handle(bad), *(take.enqueue(n) for n in range(5))]
    found = results(app, handles)

    assert isinstance(found[0], JobFailed)
    assert why in str(found[0])
    assert "its arguments" in str(found[0])
    assert found[1:] == list(range(5))
    assert [entry.event for entry in queue.journal(bad)] == ["attempt_failed"]
    assert queue.job(bad).attempt == 1


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 2**200, -(10**4000)])
def test_a_task_gets_the_integer_that_was_sent(app: Faultline, number: int) -> None:
    @app.task
    async def same(value: list[int]) -> str:
        assert type(value[0]) is int
        return hex(value[0])

    assert results(app, [same.enqueue([number])]) == [hex(number)]


def test_a_step_that_cannot_be_read_again_fails_its_job_for_good(app: Faultline, queue: Driver) -> None:
    """Written by a program in another language, say. Given back, the job would read it again, for ever."""
    met = asyncio.Event()

    @app.task
    async def remember(job: Job) -> Any:
        queue.connection.execute(
            "select faultline.step(%s, %s, (select lease_owner from faultline.open_jobs where id = %s), 'big', '1e400')",
            (job.id, job.fencing_token, job.id),
        )
        met.set()
        return await job.step("big", lambda: 1)

    handle = remember.enqueue()

    async def story() -> Any:
        await met.wait()
        return (await asyncio.gather(handle.aresult(PATIENCE / 2), return_exceptions=True))[0]

    found = work(app, story)

    assert isinstance(found, JobFailed), found
    assert "infinity" in str(found)
    assert queue.job(handle.id).attempt == 1
    assert is_about_data(UnreadableJson("invalid JSON"))
