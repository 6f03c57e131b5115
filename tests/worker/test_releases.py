"""Jobs that could not be run through no fault of their own keep their attempts, and somebody is told."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import pytest

from faultline import Faultline, Job, JobState, Snooze
from faultline.core.model import Lease
from faultline.store.reads import overview
from faultline.worker.base.counters import Tally
from faultline.worker.lease.held_lease import HeldLease
from faultline.worker.write.endings import Failed, Released
from faultline.worker.write.release_policy import UNFIT_SECONDS_MAX, PuttingOff, Releases
from tests.waiting import auntil
from tests.worker.misfortunes import Scene, conflict
from tests.worker.working import logged, results, work

if TYPE_CHECKING:
    import io

    from faultline import JobHandle
    from faultline.core.model import JobRecord
    from tests.driver import Driver


def test_jobs_of_an_unknown_task_are_given_back_with_their_attempt_and_a_delay(
    app: Faultline, queue: Driver, log: io.StringIO
) -> None:
    @app.task
    async def known() -> None: ...

    jobs = [queue.enqueue("unheard_of", max_attempts=1) for _ in range(30)]

    async def until_all_were_given_back() -> None:
        given_back = "select count(*) from faultline.open_jobs where state = 'queued' and fencing_token > 0"
        await auntil(lambda: queue.value(given_back) >= len(jobs))

    work(app, until_all_were_given_back)

    assert {(queue.job(job).state, queue.job(job).attempt) for job in jobs} == {(JobState.QUEUED, 0)}
    waits = queue.value("select array_agg(extract(epoch from next_run_at - claimed_at)::float8) from faultline.open_jobs")
    assert all(0.3 < wait < 10 for wait in waits)
    assert queue.value("select count(*) from faultline.journal") == 0
    (warning,) = logged(log, "task_unknown")
    assert (warning["level"], warning["task"], warning["known"]) == ("warning", "unheard_of", "known")


def test_a_worker_that_knows_the_task_runs_what_another_gave_back(app: Faultline, queue: Driver, dsn: str) -> None:
    job_id = queue.enqueue("fresh", max_attempts=1)

    async def until_given_back() -> None:
        await auntil(lambda: queue.job(job_id).fencing_token and queue.state(job_id) is JobState.QUEUED)

    work(app, until_given_back)
    queue.connection.execute("update faultline.open_jobs set next_run_at = faultline.now()")

    with Faultline(dsn) as newer:

        @newer.task
        async def fresh() -> str:
            return "ran"

        assert results(newer, [newer.handle(job_id)]) == ["ran"]


def test_a_worker_tells_which_tasks_it_knows(app: Faultline, queue: Driver) -> None:
    @app.task
    async def pay() -> None: ...

    @app.task(name="mail")
    async def send() -> None: ...

    async def until_told() -> list[str]:
        while not (lines := queue.run(overview.workers())) or lines[0].tasks is None:
            await asyncio.sleep(0.01)
        return lines[0].tasks

    assert work(app, until_told) == ["faultline.flow", "mail", "pay"]


def held(token: int = 1, *, attempt: int = 1, max_attempts: int = 2) -> HeldLease:
    lease = Lease(
        UUID(int=1), token, "t", {}, attempt, max_attempts, False, 0, 0, datetime.now(UTC), 30.0, None, False, None, "w/1"
    )
    return HeldLease(lease, 0.0, Tally(lambda: 0.0).of("default"))


def delay(ending: Released | Failed) -> float:
    assert isinstance(ending, Released)
    return ending.delay_seconds or 0.0


GONE = ValueError("gone")


def given_back(times: int, *, token: int = 1) -> list[float]:
    """For how long a job of an unknown task is given back, one time after the other."""
    releases = Releases(random.Random(1), lambda: 0.0)
    return [delay(releases.unknown_task(held(token + n), [])) for n in range(times)]


@pytest.mark.parametrize("token", [1, 1_800_000_000_000_000])
def test_a_job_of_an_unknown_task_comes_back_soon_and_less_and_less_often(token: int) -> None:
    """Also where `recover` has raised the tokens."""
    delays = given_back(200, token=token)

    # A worker that knows the task may stand beside this one: twenty tries in the first two minutes.
    assert sum(delays[:20]) < 120
    assert delays[0] < 1
    assert 45 <= delays[-1] <= 75


def test_many_jobs_of_an_unknown_task_do_not_keep_the_worker_busy() -> None:
    releases = Releases(random.Random(1), lambda: 0.0)
    counts = Tally(lambda: 0.0).of("default")
    rest: tuple[Any, ...] = ("t", {}, 1, 1, False, 0, 0, datetime.now(UTC), 30.0, None, False, None, "w/1")

    delays = [delay(releases.unknown_task(HeldLease(Lease(UUID(int=n), 1, *rest), 0.0, counts), [])) for n in range(10_000)]

    assert delays[49] < 1
    assert 7 < delays[999] < 13
    assert 45 <= delays[-1] <= 75


def test_an_unknown_task_is_told_of_once_a_minute_with_how_many_jobs_met_it(log: io.StringIO) -> None:
    now = [100.0]
    releases = Releases(random.Random(1), lambda: now[0])
    lease = Lease(UUID(int=1), 1, "t", {}, 1, 1, False, 0, 0, datetime.now(UTC), 30.0, None, False, None, "w/1")
    hold = HeldLease(lease, 0.0, Tally(lambda: 0.0).of("default"))

    for seconds in (0, 1, 58, 2, 1):
        now[0] += seconds
        releases.unknown_task(hold, ["known"])

    assert [line["jobs"] for line in logged(log, "task_unknown")] == [1, 3]


@pytest.mark.parametrize("why", ["unknown task", "other parameters"])
def test_a_job_that_the_code_does_not_fit_is_released_for_a_day_and_then_fails(why: str) -> None:
    now = [100.0]
    releases = Releases(random.Random(1), lambda: now[0])

    def met() -> Released | Failed:
        if why == "unknown task":
            return releases.unknown_task(held(1), [])
        return releases.unfitting_arguments(held(1), "the arguments do not match")

    assert isinstance(met(), Released)
    now[0] += UNFIT_SECONDS_MAX - 1
    assert isinstance(met(), Released)
    now[0] += 1
    ending = met()

    assert isinstance(ending, Failed)
    assert ending.failure.then == "fail"
    assert "no code came that fits; deploy it, then: faultline retry" in ending.failure.error
    assert isinstance(met(), Released), "an operator who retries it has another day"


def test_a_job_with_the_arguments_of_other_code_waits_for_that_code(
    app: Faultline, queue: Driver, dsn: str, log: io.StringIO
) -> None:
    @app.task
    async def charge(order: int) -> None: ...

    job_id = queue.enqueue("charge", {"order_id": 1}, max_attempts=1)

    async def until_given_back() -> None:
        await auntil(lambda: queue.job(job_id).fencing_token and queue.state(job_id) is JobState.QUEUED)

    work(app, until_given_back)

    assert queue.job(job_id).attempt == 0
    (warning,) = logged(log, "arguments_unfit")
    assert (warning["level"], warning["task"]) == ("warning", "charge")
    assert "the arguments do not match charge(order: 'int')" in warning["error"]

    with Faultline(dsn) as deployed:

        @deployed.task(name="charge")
        async def charge_by_id(order_id: int) -> int:
            return order_id

        assert results(deployed, [deployed.handle(job_id)]) == [1]


def test_interruptions_come_less_and_less_often() -> None:
    releases = Releases(random.Random(1), lambda: 0.0)

    delays = [delay(releases.interrupted(held(token), GONE)) for token in range(1, 11)]

    assert 0.7 < delays[0] < 1.3
    assert delays[:6] == sorted(delays[:6])
    assert all(45 <= seconds <= 75 for seconds in delays[6:])


def test_a_job_that_is_interrupted_every_time_uses_up_attempts_after_ten_minutes() -> None:
    releases = Releases(random.Random(1), lambda: 0.0)

    given_back = [releases.interrupted(held(token), GONE) for token in range(1, 16)]
    counted = [releases.interrupted(held(16), GONE), releases.interrupted(held(17, attempt=2), GONE)]
    retried = releases.interrupted(held(18, attempt=1), GONE)

    assert isinstance(retried, Released)
    assert sum(map(delay, given_back)) > 450
    assert ["interrupted from outside 16 times in a row" in failed(ending) for ending in counted] == [True, False]
    assert "gone" in failed(counted[1])


def failed(ending: Released | Failed) -> str:
    assert isinstance(ending, Failed)
    return str(ending.failure.error)


def test_what_happened_elsewhere_between_two_interruptions_is_not_held_against_the_job() -> None:
    """Others may have given it back for reasons of their own, or it slept there: a job that polls does so all day."""
    releases = Releases(random.Random(1), lambda: 0.0)

    few = [releases.interrupted(held(token), GONE) for token in (5, 400, 800)]
    many = [releases.interrupted(held(token), GONE) for token in range(10_000, 60_000, 2000)]

    assert all(isinstance(ending, Released) for ending in (*few, *many))


def test_a_job_that_failed_by_itself_meanwhile_was_not_interrupted_in_a_row(app: Faultline, queue: Driver) -> None:
    runs = 0

    @app.task(max_attempts=2)
    async def unlucky(job: Job) -> str:
        nonlocal runs
        runs += 1
        if runs == 11:
            raise ValueError("the database was fine")
        if runs < 18:
            await conflict(job, Scene(queue, ""))
        return "done"

    job = run_without_delays(app, queue, unlucky.enqueue())

    assert (job.state, job.attempt, job.fencing_token) == (JobState.SUCCEEDED, 2, 18)


def test_a_job_that_slept_meanwhile_was_not_interrupted_in_a_row() -> None:
    releases = Releases(random.Random(1), lambda: 0.0)

    for token in range(1, 100, 2):
        ending = releases.interrupted(held(token), GONE)
        releases.went_well(held(token + 1).lease)

        assert isinstance(ending, Released)


def test_a_task_that_ends_its_own_session_every_time_fails_in_the_end(app: Faultline, queue: Driver) -> None:
    @app.task(max_attempts=2)
    async def suicidal(job: Job) -> None:
        async with job.transaction() as tx:
            await tx.execute("select pg_terminate_backend(pg_backend_pid())")

    job = run_without_delays(app, queue, suicidal.enqueue())

    assert (job.attempt, job.fencing_token) == (2, 17)
    assert "interrupted from outside 17 times in a row" in (job.last_error or "")


def test_a_task_that_sleeps_between_its_interruptions_is_never_charged(app: Faultline, queue: Driver) -> None:
    runs = 0

    @app.task(max_attempts=1)
    async def patient(job: Job) -> object:
        nonlocal runs
        runs += 1
        if runs % 2:
            await conflict(job, Scene(queue, ""))
        return "done" if runs == 40 else Snooze(60)

    job = run_without_delays(app, queue, patient.enqueue())

    assert (job.state, job.attempt, job.fencing_token) == (JobState.SUCCEEDED, 1, 40)


AT_ONCE = b"""with due as (
  update faultline.open_jobs set next_run_at = faultline.clock() where state = 'queued' returning queue
)
select faultline.wake(queue, 0, faultline.clock()) from due"""


def run_without_delays(app: Faultline, queue: Driver, handle: JobHandle[Any]) -> JobRecord:
    """Until it has ended."""

    async def until_it_ended() -> None:
        while queue.job(handle.id).state in (JobState.QUEUED, JobState.RUNNING):
            queue.connection.execute(AT_ONCE)
            await asyncio.sleep(0.02)

    work(app, until_it_ended)
    return queue.job(handle.id)


def test_a_job_that_may_not_run_here_is_put_off_for_longer_each_time_that_it_comes_back() -> None:
    putting_off, job_id = PuttingOff(), uuid4()

    assert [putting_off.seconds(job_id, float(now)) for now in range(7)] == [None, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    assert putting_off.seconds(uuid4(), 7.0) is None
    assert putting_off.seconds(job_id, 40.0) is None
