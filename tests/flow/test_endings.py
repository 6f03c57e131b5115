"""What comes out of the task of a flow, and what becomes of its job: the program remembers that it waits."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from faultline import BlockingJob, ChildFailed, Faultline, Job, JobFailed, JobState, SignalTimeout
from faultline.core.host import Host
from faultline.store import verbs
from faultline.testing import CutAt, drain
from tests.waiting import auntil
from tests.worker.working import logged, results, work

if TYPE_CHECKING:
    import io

    from faultline import Task
    from tests.driver import Clock, Driver

SHORT = 0.05


async def plainly(job: Job) -> None:
    await job.sleep(SHORT)


async def in_the_body_of_a_group(job: Job) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.sleep(30))
        await job.sleep(SHORT)


async def swallowed(job: Job) -> None:
    with contextlib.suppress(BaseException):
        await job.sleep(SHORT)


async def swallowed_twice(job: Job) -> None:
    for _ in range(2):
        with contextlib.suppress(BaseException):
            await job.sleep(SHORT)


async def turned_into_a_cancellation(job: Job) -> None:
    try:
        await job.sleep(SHORT)
    except BaseException:  # noqa: BLE001
        raise asyncio.CancelledError from None


async def wrapped(job: Job) -> None:
    try:
        await job.sleep(SHORT)
    except BaseException as error:
        raise RuntimeError("wrapped") from error


async def wrapped_again_without_saying_why(job: Job) -> None:
    try:
        await wrapped(job)
    except RuntimeError:
        raise ValueError("wrapped again")  # noqa: B904


async def wrapped_in_a_group(job: Job) -> None:
    try:
        await job.sleep(SHORT)
    except BaseException as error:
        raise ExceptionGroup("wrapped", [ValueError(1), KeyError(2)]) from error


async def wrapped_in_a_group_without_saying_why(job: Job) -> None:
    try:
        await job.sleep(SHORT)
    except BaseException:  # noqa: BLE001
        raise ExceptionGroup("wrapped", [ExceptionGroup("again", [ValueError(1)])])  # noqa: B904


async def wrapped_in_a_branch(job: Job) -> None:
    await job.gather(job.branch(wrapped, job), job.branch(plainly, job))


async def within_a_timeout(job: Job) -> None:
    async with asyncio.timeout(30):
        await asyncio.wait_for(asyncio.sleep(0), 30)
        await job.sleep(SHORT)


Way = Callable[[Job], Awaitable[None]]


@pytest.mark.parametrize(
    "way",
    [
        plainly,
        in_the_body_of_a_group,
        swallowed,
        swallowed_twice,
        turned_into_a_cancellation,
        within_a_timeout,
        wrapped,
        wrapped_again_without_saying_why,
        wrapped_in_a_group,
        wrapped_in_a_group_without_saying_why,
        wrapped_in_a_branch,
    ],
    ids=lambda way: way.__name__,
)
def test_a_wait_is_a_suspension_however_it_comes_out_of_the_task(app: Faultline, queue: Driver, way: Way) -> None:
    runs = 0

    @app.task(max_attempts=1)
    async def waits(job: Job) -> str:
        nonlocal runs
        runs += 1
        await way(job)
        return "done"

    handle = waits.enqueue()

    assert results(app, [handle]) == ["done"]
    assert runs == (3 if way is swallowed_twice else 2)
    assert queue.job(handle.id).attempt == 1
    assert queue.journal(handle.id) == []
    assert queue.broken_invariants() == []


def test_a_blocking_task_waits_likewise(app: Faultline, queue: Driver) -> None:
    runs = 0

    @app.task(max_attempts=1)
    def waits(job: BlockingJob) -> str:
        nonlocal runs
        runs += 1
        with contextlib.suppress(BaseException):
            job.sleep(SHORT)
        return "done"

    handle = waits.enqueue()

    assert results(app, [handle]) == ["done"]
    assert runs == 2
    assert queue.job(handle.id).attempt == 1


def test_an_error_beside_the_wait_fails_the_attempt(app: Faultline) -> None:
    @app.task(max_attempts=1)
    async def waits(job: Job) -> None:
        async def fails() -> None:
            raise ValueError("mine")

        async with asyncio.TaskGroup() as group:
            group.create_task(fails())
            try:
                await job.sleep(30)
            finally:
                await asyncio.sleep(0)

    (error,) = results(app, [waits.enqueue()])

    assert isinstance(error, JobFailed)
    assert "mine" in str(error)


def test_a_child_that_fails_ends_its_parent_at_once(app: Faultline, queue: Driver) -> None:
    runs = 0

    @app.task(max_attempts=1)
    async def child() -> None:
        raise ValueError("broken")

    @app.task(max_attempts=5, backoff=lambda _: 0)
    async def parent(job: Job) -> None:
        nonlocal runs
        runs += 1
        await job.call(child)

    handle = parent.enqueue()
    (error,) = results(app, [handle])

    assert isinstance(error, JobFailed)
    assert "broken" in str(error)
    assert runs == 2
    assert queue.state(handle.id) is JobState.FAILED


def test_a_caught_failure_of_a_child_is_history(app: Faultline) -> None:
    @app.task(max_attempts=1)
    async def child() -> None:
        raise ValueError("broken")

    @app.task(max_attempts=1)
    async def parent(job: Job) -> str:
        try:
            await job.call(child)
        except ChildFailed:
            await job.sleep(SHORT)
            return "without it"
        return "with it"

    assert results(app, [parent.enqueue()]) == ["without it"]


def test_a_timeout_that_nobody_catches_ends_the_job_at_once(app: Faultline) -> None:
    runs = 0

    @app.task(max_attempts=5, backoff=lambda _: 0)
    async def waits(job: Job) -> None:
        nonlocal runs
        runs += 1
        await job.receive("go", int, timeout=SHORT)

    (error,) = results(app, [waits.enqueue()])

    assert isinstance(error, JobFailed)
    assert SignalTimeout.__name__ in str(error)
    assert runs == 2


def suspended(queue: Driver) -> int:
    return int(queue.value("select count(*) from faultline.open_jobs where suspended"))


def changed(queue: Driver) -> int:
    return int(queue.value("select count(*) from faultline.journal where event = 'program_changed'"))


async def _nothing(_: object) -> None: ...


def program(app: Faultline, step: str, ran: list[str]) -> Task[[], str]:
    @app.task(name="flow", max_attempts=1)
    async def flow(job: Job) -> str:
        try:
            await job.atomic(step, _nothing)
        except Exception:  # noqa: BLE001 - an honest one, which must not see that the program has changed
            ran.append("fallback")
        await job.receive("go", int)
        ran.append(step)
        return step

    return flow


def test_a_changed_program_runs_nothing_and_goes_on_once_the_code_fits(dsn: str, queue: Driver, log: io.StringIO) -> None:
    ran: list[str] = []
    with Faultline(dsn) as old, Faultline(dsn) as new:
        handle = program(old, "old", ran).enqueue()
        program(new, "new", ran)
        work(old, lambda: auntil(lambda: suspended(queue) == 1))
        queue.run(verbs.signal(handle.id, "go", 1))

        work(new, lambda: auntil(lambda: changed(queue) == 1 and queue.state(handle.id) is JobState.QUEUED))
        job = queue.job(handle.id)
        assert (job.attempt, ran) == (0, [])
        (said,) = logged(log, "program_changed")
        assert "was 'old' when this job ran it, and is 'new' now" in said["error"]

        assert results(old, [handle]) == ["old"]
    assert ran == ["old"]
    assert queue.broken_invariants() == []


def test_finding_16_a_worker_with_other_code_tries_what_did_not_fit(dsn: str, queue: Driver, log: io.StringIO) -> None:
    ran: list[str] = []
    with Faultline(dsn) as app:
        handle = program(app, "now", ran).enqueue()
        work(app, lambda: auntil(lambda: suspended(queue) == 1))
        queue.run(verbs.signal(handle.id, "go", 1))
        queue.execute("select * from faultline.resolve()")
        lease = queue.claim_one()
        queue.run(verbs.program_changed(lease, "other code", "changed"))
        queue.release(lease, delays=[600])

        assert results(app, [handle]) == ["now"]

    [tried] = logged(log, "changed_programs_due")
    assert tried["jobs"] == 1


def test_drain_reports_a_program_that_has_changed(dsn: str, queue: Driver) -> None:
    ran: list[str] = []
    with Faultline(dsn) as old, Faultline(dsn) as new:
        handle = program(old, "old", ran).enqueue()
        program(new, "new", ran)
        assert drain(old).changed == ()
        queue.run(verbs.signal(handle.id, "go", 1))

        (said,) = drain(new).changed

    assert said.startswith("flow: ")
    assert "the program has changed" in said


def test_finding_16_a_job_whose_program_has_changed_is_tried_less_and_less_often(queue: Driver, clock: Clock) -> None:
    clock.take()
    queue.enqueue("t")
    lease = queue.claim_one()

    def pause(code: str) -> float:
        seconds = queue.run(verbs.program_changed(lease, code, "it differs"))
        assert seconds is not None
        clock.advance(seconds)
        return seconds

    assert [pause("a") for _ in range(9)] == [5, 5, 10, 20, 40, 80, 160, 320, 600]
    assert pause("b") == 5
    assert changed(queue) == 2
    assert queue.run(verbs.program_changed(replace(lease, owner="other/1"), "c", "it differs")) is None


def test_a_task_that_takes_no_job_is_not_run_on_a_job_with_history(dsn: str, queue: Driver, log: io.StringIO) -> None:
    ran = []
    with Faultline(dsn) as old, Faultline(dsn) as new:

        @old.task(name="flow", max_attempts=1)
        async def asks(job: Job) -> bool:
            return await job.receive("go", bool)

        @new.task(name="flow", max_attempts=1)
        async def publishes() -> str:
            ran.append(1)
            return "published without asking"

        handle = asks.enqueue()
        work(old, lambda: auntil(lambda: suspended(queue) == 1))
        queue.run(verbs.signal(handle.id, "go", payload=False))
        work(new, lambda: auntil(lambda: changed(queue) == 1))
        assert ran == []
        assert queue.job(handle.id).attempt == 0
        assert "takes no job" in logged(log, "program_changed")[0]["error"]


@pytest.mark.parametrize("point", ["before_suspend_sent", "after_suspend_committed", "after_history_committed"])
def test_a_lost_answer_does_not_lose_a_wait(dsn: str, queue: Driver, point: str) -> None:
    cut = CutAt(point)
    with Faultline(dsn, host=Host(faults=cut)) as app:

        @app.task(max_attempts=1)
        async def waits(job: Job) -> str:
            await job.sleep(SHORT)
            return "done"

        assert results(app, [waits.enqueue()]) == ["done"]
    assert cut.happened
    assert queue.broken_invariants() == []


def test_how_far_a_job_was_is_kept_when_it_has_succeeded(app: Faultline) -> None:
    @app.task
    async def count(job: Job) -> None:
        await job.progress({"done": 3, "of": 3})

    @app.task
    async def plain() -> None: ...

    counted, silent = count.enqueue(), plain.enqueue()
    results(app, [counted, silent])

    assert app.job(counted.id).progress == {"done": 3, "of": 3}
    assert app.job(silent.id).progress is None
