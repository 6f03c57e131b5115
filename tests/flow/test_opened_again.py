"""What an operator does about a signal that does not fit or did not come: retry the job, and send the right one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from faultline import Faultline, Job, JobFailed, UnreadableJson
from tests.app.kinds import KINDS, task_of
from tests.flow.running import calls, ended, job_of, signals, waits
from tests.waiting import auntil
from tests.worker.working import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from faultline import JobHandle


def fails(app: Faultline) -> Callable[[JobHandle[Any]], Awaitable[None]]:
    """Wait until the job has failed."""

    async def wait(handle: JobHandle[Any]) -> None:
        await auntil(lambda: job_of(app, handle)["state"] == "failed", PATIENCE)

    return wait


def retries(app: Faultline) -> Callable[[JobHandle[Any]], Awaitable[None]]:
    async def retry(handle: JobHandle[Any]) -> None:
        with psycopg.connect(app.dsn, autocommit=True) as connection:
            connection.execute("select faultline.retry(%s)", (handle.id,))

    return retry


def received_by(app: Faultline) -> list[tuple[Any, str | None]]:
    with psycopg.connect(app.dsn, autocommit=True) as connection:
        return connection.execute("select payload, received_by from faultline.signals order by id").fetchall()


@KINDS
def test_a_job_that_got_a_wrong_signal_asks_again_after_a_retry(app: Faultline, kind: str) -> None:
    @task_of(app, kind)
    async def program(job: Job) -> int:
        return await job.receive("go", int)

    handle = program.enqueue()
    story = [waits(app), signals(app, "go", "seven"), fails(app)]
    error = ended(app, handle, *story)

    assert isinstance(error, JobFailed)
    assert "'seven' is not int" in str(error)
    assert "Retry the job: it asks again at this call. Then send a payload that fits" in str(error)
    assert ended(app, handle, retries(app), waits(app), signals(app, "go", 7)) == 7
    token = calls(app, handle)["1"]["fencing_token"]
    assert received_by(app) == [("seven", f"{token - 2}/1"), (7, "1")]


@KINDS
def test_a_job_whose_signal_did_not_come_waits_as_long_again_after_a_retry(app: Faultline, kind: str) -> None:
    @task_of(app, kind)
    async def program(job: Job) -> int:
        return await job.receive("go", int, timeout=0.2 if job.fencing_token <= 2 else 60)

    handle = program.enqueue()
    error = ended(app, handle)

    assert "SignalTimeout" in str(error)
    assert "Retry the job: it waits as long again" in str(error)
    until = calls(app, handle)["1"]["until"]
    assert ended(app, handle, retries(app), waits(app), signals(app, "go", 7)) == 7
    assert calls(app, handle)["1"]["until"] > until


def test_a_wrong_signal_past_which_the_program_went_on_is_history(app: Faultline) -> None:
    broken = [True]

    @app.step
    async def note() -> None: ...

    @app.task(max_attempts=1)
    async def program(job: Job) -> str:
        try:
            await job.receive("go", int)
        except UnreadableJson:
            await job.do(note)
        if broken:
            raise ValueError("later")
        return "went on"

    handle = program.enqueue()
    assert "later" in str(ended(app, handle, waits(app), signals(app, "go", "seven")))
    broken.clear()

    assert ended(app, handle, retries(app)) == "went on"
    assert received_by(app) == [("seven", "1")]


@pytest.mark.parametrize("sends", [True, False])
def test_an_answer_that_was_read_stays_read_when_what_follows_fails(app: Faultline, *, sends: bool) -> None:
    broken = [True]

    @app.task(max_attempts=1)
    async def program(job: Job) -> int:
        got = await job.receive("go", int, timeout=60 if sends else 0.1, default=0)
        if broken:
            raise ValueError("later")
        return got

    handle = program.enqueue()
    story = [waits(app), signals(app, "go", 7)] if sends else []
    assert "later" in str(ended(app, handle, *story))
    broken.clear()

    assert ended(app, handle, retries(app)) == (7 if sends else 0)


def test_beside_other_waits_only_the_one_that_failed_is_asked_again(app: Faultline) -> None:
    @app.task
    async def program(job: Job) -> list[Any]:
        return list(await job.gather(job.receive("a", int), job.receive("b", int)))

    handle = program.enqueue()
    story = [waits(app), signals(app, "a", 1), signals(app, "b", "two"), fails(app), retries(app), waits(app)]

    assert ended(app, handle, *story, signals(app, "b", 2)) == [1, 2]
