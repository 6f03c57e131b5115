"""A task that keeps its effects and its completion together survives a crash anywhere; one that does not is found out."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from faultline import BlockingJob, ConfigError, Faultline, Job, JobState, Retry
from faultline.core.ids import Ids
from faultline.store.reads import invariants, views
from faultline.testing import crash_everywhere, enqueued, frozen_time

if TYPE_CHECKING:
    from tests.driver import Driver

pytestmark = pytest.mark.long

INSERT = "insert into effects values (%s)"
#: Where a task that writes beside its transaction has written and is not done.
TOO_EARLY = ["after_execution", "before_complete_sent"]


class Effects:
    """Rows of a table that the tasks write to."""

    def __init__(self, queue: Driver) -> None:
        queue.connection.execute("create table effects (what text)")
        self._queue = queue

    def __call__(self) -> int:
        return int(self._queue.value("select count(*) from effects"))

    def all(self) -> list[str]:
        return list(self._queue.value("select coalesce(array_agg(what), '{}') from effects"))

    def forget(self) -> None:
        self._queue.connection.execute("delete from effects")


@pytest.fixture
def effects(queue: Driver) -> Effects:
    return Effects(queue)


def test_an_async_task_that_completes_in_its_transaction_survives(app: Faultline, effects: Effects) -> None:
    @app.task
    async def pay(job: Job, who: str) -> None:
        async with job.transaction() as tx:
            await tx.execute(INSERT, (who,))
            tx.complete(who)

    report = crash_everywhere(app, pay.bind("ada"), effects=effects)

    report.raise_if_broken()
    assert (report.task, report.expected, report.ok) == ("pay", 1, True)
    assert [crash.point for crash in report.crashes] == [
        "before_claim_sent",
        "after_claim_committed",
        "before_execution",
        "before_commit_sent",
        "after_commit_committed",
        "after_execution",
    ]
    assert all(crash.crashed and crash.state is JobState.SUCCEEDED and crash.effects == 1 for crash in report.crashes)
    assert effects() == 7  # one without a crash, and one for each


def test_an_async_task_that_writes_beside_its_transaction_is_found_out(app: Faultline, dsn: str, effects: Effects) -> None:
    @app.task
    async def pay(who: str) -> None:
        async with await psycopg.AsyncConnection.connect(dsn) as connection:
            await connection.execute(INSERT, (who,))

    report = crash_everywhere(app, pay.bind("ada"), effects=effects)

    assert not report.ok
    assert [(crash.point, crash.effects) for crash in report.broken] == [(point, 2) for point in TOO_EARLY]
    with pytest.raises(AssertionError, match="pay was crashed at 6 points in 1 life and broke at 2") as error:
        report.raise_if_broken()
    said = str(error.value)
    assert "BROKEN  before_complete_sent: effects 2 instead of 1, job succeeded" in said
    assert all(
        remedy in said for remedy in ("job.atomic", "job.transaction()", "tx.complete", "job.step", "job.idempotency_key")
    )


def test_a_blocking_task_that_completes_in_its_transaction_survives(app: Faultline, effects: Effects) -> None:
    @app.task
    def pay(job: BlockingJob, who: str) -> None:
        with job.transaction() as tx:
            tx.execute(INSERT, (who,))
            tx.complete(who)

    points = ["before_execution", "before_commit_sent", "after_commit_committed"]
    crash_everywhere(app, pay.bind("ada"), effects=effects, points=points).raise_if_broken()


def test_a_blocking_task_that_writes_beside_its_transaction_is_found_out(app: Faultline, dsn: str, effects: Effects) -> None:
    @app.task
    def pay(who: str) -> None:
        with psycopg.connect(dsn) as connection:
            connection.execute(INSERT, (who,))

    points = ["before_execution", *TOO_EARLY, "after_complete_committed"]
    report = crash_everywhere(app, pay.bind("ada"), effects=effects, points=points)

    assert [crash.point for crash in report.broken] == TOO_EARLY


def test_steps_inside_transactions_survive_at_every_visit(app: Faultline, effects: Effects) -> None:
    @app.task
    async def pay(job: Job) -> None:
        for who in ("ada", "grace"):
            async with job.transaction() as tx:
                await job.step(who, write, tx, who)

    async def write(tx: Any, who: str) -> None:
        await tx.execute(INSERT, (who,))

    points = ["before_commit_sent", "after_commit_committed"]
    report = crash_everywhere(app, pay.bind(), effects=effects, points=points)

    report.raise_if_broken()
    assert [crash.point for crash in report.crashes] == [
        "before_commit_sent",
        "after_commit_committed",
        "before_commit_sent@2",
        "after_commit_committed@2",
    ]


def test_a_step_by_itself_may_be_repeated_and_that_is_seen(app: Faultline, dsn: str, effects: Effects) -> None:
    @app.task
    def pay(job: BlockingJob) -> None:
        job.step("pay", write)

    def write() -> None:
        with psycopg.connect(dsn) as connection:
            connection.execute(INSERT, ("ada",))

    report = crash_everywhere(app, pay.bind(), effects=effects, points=["before_step_sent", "after_step_committed"])

    assert [crash.point for crash in report.broken] == ["before_step_sent"]


def test_a_job_enqueued_beside_the_transaction_is_enqueued_twice(app: Faultline, effects: Effects) -> None:
    @app.task
    async def order() -> None:
        await ship.aenqueue()

    @app.task
    async def ship(job: Job) -> None:
        async with job.transaction() as tx:
            await tx.execute(INSERT, ("parcel",))
            tx.complete()

    report = crash_everywhere(
        app,
        order.bind(),
        effects=lambda: {"orders shipped": effects(), "jobs": len(enqueued(app, ship, state=None))},
        points=["before_enqueue_sent", "after_enqueue_committed"],
    )

    assert report.expected == {"orders shipped": 1, "jobs": 1}
    assert [(crash.point, crash.effects) for crash in report.broken] == [
        ("after_enqueue_committed", {"orders shipped": 2, "jobs": 2})
    ]


def test_a_job_may_die_several_times_in_a_row(app: Faultline, dsn: str, effects: Effects) -> None:
    @app.task(max_attempts=5)
    def pay() -> None:
        with psycopg.connect(dsn) as connection:
            connection.execute(INSERT, ("ada",))

    report = crash_everywhere(app, pay.bind(), effects=effects, points=["after_execution"], times=3)

    assert [crash.effects for crash in report.crashes] == [4]


def test_a_job_with_one_attempt_is_not_recovered(app: Faultline, effects: Effects) -> None:
    @app.task(max_attempts=1)
    async def pay(job: Job) -> None:
        async with job.transaction() as tx:
            await tx.execute(INSERT, ("ada",))
            tx.complete()

    report = crash_everywhere(app, pay.bind(), effects=effects, points=["before_execution", "after_commit_committed"])

    assert "BROKEN  before_execution: effects 0 instead of 1, job failed with" in str(report)
    assert [crash.ok for crash in report.crashes] == [False, True]


def test_later_attempts_and_delayed_jobs_belong_to_the_run(app: Faultline, effects: Effects) -> None:
    @app.task
    async def pay(job: Job) -> Retry | None:
        if job.attempt == 1:
            return Retry(after=600)
        async with job.transaction() as tx:
            await remind.options(delay=3600).using(tx).aenqueue()
            tx.complete()
        return None

    @app.task
    async def remind(job: Job) -> None:
        async with job.transaction() as tx:
            await tx.execute(INSERT, ("reminded",))
            tx.complete()

    # The key names the job, and every run is a job of its own.
    job = pay.options(idempotency_key="order 42", id=Ids().new(), delay=5).bind()
    report = crash_everywhere(app, job, effects=effects, points=["after_execution", "after_fail_committed"], expect=1)

    report.raise_if_broken()
    assert [crash.point for crash in report.crashes] == [
        "after_execution",
        "after_fail_committed",
        "life 2: after_execution",  # the second attempt
        "life 3: after_execution",  # the delayed job
    ]


def test_a_point_in_a_loop_is_not_crashed_at_each_time(app: Faultline, effects: Effects) -> None:
    @app.task
    async def pay(job: Job) -> None:
        for n in range(7):
            await job.progress(n)
        async with job.transaction() as tx:
            await tx.execute(INSERT, ("ada",))
            tx.complete()

    report = crash_everywhere(app, pay.bind(), effects=effects, points=["before_progress_sent"])

    assert [crash.point for crash in report.crashes][-1] == "before_progress_sent@5"
    assert report.left_out == ("before_progress_sent@6", "before_progress_sent@7")
    assert "left out, as reached too often: before_progress_sent@6" in str(report)


def test_anything_can_be_compared_that_can_be_reset(app: Faultline, effects: Effects) -> None:
    @app.task
    async def pay(job: Job, who: str) -> None:
        async with job.transaction() as tx:
            await tx.execute(INSERT, (who,))
            tx.complete()

    job, points = pay.bind("ada"), ["after_execution"]

    with pytest.raises(ConfigError, match=r"effects\(\) gave \['ada'\]: without reset=... it must return a number"):
        crash_everywhere(app, job, effects=effects.all, points=points)
    report = crash_everywhere(app, job, effects=effects.all, reset=effects.forget, points=points)

    assert (report.ok, report.expected) == (True, ["ada"])


def test_afterwards_nothing_is_left_behind(app: Faultline, effects: Effects) -> None:
    @app.task
    async def pay(job: Job) -> None:
        async with job.transaction() as tx:
            await tx.execute(INSERT, ("ada",))
            tx.complete()

    crash_everywhere(app, pay.bind(), effects=effects, points=["before_commit_sent", "after_commit_committed"])

    assert invariants.violations(app.database.run) == []
    assert app.database.run(views.workers()) == []
    counts = app.database.run(views.counts())
    assert list(counts) == ["succeeded"]


def test_time_that_is_frozen_already_is_used(app: Faultline, effects: Effects) -> None:
    @app.task(lease=3600)
    async def pay(job: Job) -> None:
        async with job.transaction() as tx:
            await tx.execute(INSERT, ("ada",))
            tx.complete()

    with frozen_time(app) as time:
        began = time.now
        report = crash_everywhere(app, pay.bind(), effects=effects, points=["before_execution"], time=time)

        assert report.ok
        assert (time.now - began).total_seconds() > 3600


def test_effects_that_cannot_be_seen_show_nothing(app: Faultline, effects: Effects) -> None:
    calls = []

    @app.task
    async def pay() -> None:
        calls.append("a variable of the child process")

    with pytest.raises(AssertionError, match=r"gave 0 before and after a run .* look at what outlives"):
        crash_everywhere(app, pay.bind(), effects=lambda: len(calls))


def test_a_task_that_fails_without_having_done_anything_is_not_crashed(app: Faultline, effects: Effects) -> None:
    @app.task(max_attempts=2)
    async def pay() -> None:
        raise LookupError("no such order")

    with pytest.raises(
        AssertionError, match=r"before and after a run of pay without a crash, .*: job failed with LookupError"
    ):
        crash_everywhere(app, pay.bind(), effects=effects)


def test_effects_other_than_expected_are_told_before_anything_is_crashed(app: Faultline, effects: Effects) -> None:
    @app.task
    async def pay(job: Job) -> None:
        async with job.transaction() as tx:
            await tx.execute(INSERT, ("ada",))

    with pytest.raises(AssertionError, match="without any crash the effects of pay are 1, not 2"):
        crash_everywhere(app, pay.bind(), effects=effects, expect=2)


def test_a_task_that_takes_another_way_each_time_shows_nothing(app: Faultline, queue: Driver, effects: Effects) -> None:
    @app.task
    async def pay(job: Job) -> None:
        if effects() == 0:
            await job.progress("only the first time")
        async with job.transaction() as tx:
            await tx.execute(INSERT, ("ada",))
            tx.complete()

    report = crash_everywhere(app, pay.bind(), effects=effects, points=["before_progress_sent"])

    assert not report.ok
    assert "NOT COVERED  before_progress_sent: not reached this time" in str(report)


def test_misuse_is_told_before_anything_is_run(app: Faultline, dsn: str, effects: Effects) -> None:
    @app.task
    async def pay() -> None: ...

    with Faultline(dsn) as other:

        @other.task
        async def stranger() -> None: ...

    def refused(what: str, job: Any = None, **words: Any) -> None:
        with pytest.raises(ConfigError, match=what):
            crash_everywhere(app, job or pay.bind(), effects=effects, **words)

    async def in_a_loop() -> None:
        refused("an event loop is running here; write: await asyncio.to_thread")

    refused("no task named stranger is registered in this application; registered: pay", stranger.bind())
    refused(r"a job with its arguments, not <Task pay>; write: task.bind", pay)
    refused("unknown fault point after_lunch; choose one of: before_enqueue_sent", points=["after_lunch"])
    refused("times is 0", times=0)
    asyncio.run(in_a_loop())
    pay.enqueue()
    refused(r"other jobs are due in default; run them first: drain\(app\)")


def test_a_point_that_is_never_reached_is_answered_with_those_that_are(app: Faultline, effects: Effects) -> None:
    @app.task
    async def pay(job: Job) -> None:
        async with job.transaction() as tx:
            await tx.execute(INSERT, ("ada",))
            tx.complete()

    with pytest.raises(ConfigError, match=r"never reaches before_step_sent; .* it reaches: .*before_execution"):
        crash_everywhere(app, pay.bind(), effects=effects, points=["before_step_sent", "before_execution"])
    with pytest.raises(ConfigError, match="never reaches any of these points"):
        crash_everywhere(app, pay.bind(), effects=effects, points=[])
