"""A flow is crashed in each of its lives: behind its waits, in its children, and while it is undone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg
import pytest

from faultline import ChildFailed, Faultline, Job, JobState
from faultline.store.reads import invariants
from faultline.testing import crash_everywhere

if TYPE_CHECKING:
    from collections.abc import Callable

    from faultline import Step, Transaction
    from tests.driver import Driver

pytestmark = pytest.mark.long

INSERT = "insert into effects values (%s)"
#: A step that writes beside the job's transaction has written here, and is not recorded.
UNRECORDED = "before_record_sent"
#: A few are enough to see in which life the job was crashed.
POINTS = [UNRECORDED, "after_execution"]


@pytest.fixture
def effects(queue: Driver) -> Callable[[], dict[str, int]]:
    queue.connection.execute("create table effects (what text)")

    def counted() -> dict[str, int]:
        found = queue.connection.execute("select what, count(*) from effects group by what").fetchall()
        return {what: int(count) for what, count in found}

    return counted


@pytest.fixture
def write(app: Faultline, dsn: str) -> Step[[str], str]:
    """A step that is not remembered together with what it writes."""

    @app.step
    async def write(what: str) -> str:
        async with await psycopg.AsyncConnection.connect(dsn) as connection:
            await connection.execute(INSERT, (what,))
        return what

    return write


async def note(tx: Transaction, what: str) -> str:
    await tx.execute(INSERT, (what,))
    return what


def broken(report: Any) -> list[str]:
    return [crash.point for crash in report.broken]


def test_a_step_before_a_sleep_and_one_behind_it_are_crashed(
    app: Faultline, effects: Callable[[], Any], write: Step[[str], str]
) -> None:
    @app.task
    async def remind(job: Job) -> None:
        await job.do(write, "before")
        await job.sleep(30 * 24 * 3600)
        await job.do(write, "behind")

    report = crash_everywhere(app, remind.bind(), effects=effects, points=POINTS)

    assert broken(report) == [UNRECORDED, f"life 2: {UNRECORDED}"]
    assert [crash.effects for crash in report.broken] == [{"before": 2, "behind": 1}, {"before": 1, "behind": 2}]
    assert (report.lives, report.not_covered) == (2, [])
    with pytest.raises(AssertionError, match="remind was crashed at 4 points in 2 lives and broke at 2") as error:
        report.raise_if_broken()
    assert 'job.atomic("pay", function)' in str(error.value)


def test_a_flow_that_keeps_effects_and_records_together_survives_in_every_life(
    app: Faultline, effects: Callable[[], Any], queue: Driver
) -> None:
    @app.task
    async def part(job: Job, n: int) -> int:
        await job.atomic("part", note, f"part {n}")
        return n

    @app.task
    async def order(job: Job) -> int:
        await job.sleep(60)
        parts = await job.map(part, [1, 2])
        await job.atomic("end", note, "end")
        return sum(parts)

    report = crash_everywhere(app, order.bind(), effects=effects)

    report.raise_if_broken()
    assert report.expected == {"part 1": 1, "part 2": 1, "end": 1}
    assert report.lives == 4  # until the sleep, until the children, the children, the end
    assert {crash.point.partition(":")[0] for crash in report.crashes if crash.point.startswith("life")} == {
        "life 2",
        "life 3",
        "life 4",
    }
    assert {"life 2: after_spawn_committed", "life 3: before_commit_sent@2", "life 4: before_collect_outcomes_sent"} <= {
        crash.point for crash in report.crashes
    }
    assert f"order was crashed at {len(report.crashes)} points in 4 lives and survived" in str(report)
    assert invariants.violations(app.database.run) == []
    assert queue.value("select count(*) from faultline.jobs where state in ('queued', 'running')") == 0


def test_a_step_in_a_child_is_crashed(app: Faultline, effects: Callable[[], Any], write: Step[[str], str]) -> None:
    @app.task(queue="parts")
    async def child(job: Job) -> str:
        return await job.do(write, "child")

    @app.task
    async def parent(job: Job) -> str:
        return await job.call(child)

    report = crash_everywhere(app, parent.bind(), effects=effects, points=POINTS)

    assert broken(report) == [f"life 2: {UNRECORDED}"]
    assert report.lives == 3


def test_an_undo_of_a_saga_that_fails_is_crashed(
    app: Faultline, effects: Callable[[], Any], write: Step[[str], str], dsn: str
) -> None:
    @app.step
    async def undo(_result: str | None, what: str) -> None:
        async with await psycopg.AsyncConnection.connect(dsn) as connection:
            await connection.execute(INSERT, (f"undone {what}",))

    @app.task
    async def trip(job: Job) -> None:
        async with job.saga() as saga:
            await saga.do(write, "booked", undo=undo)
            await job.sleep(60)
            saga.fail("the hotel is gone")

    report = crash_everywhere(app, trip.bind(), effects=effects, points=[UNRECORDED])

    assert report.expected == {"booked": 1, "undone booked": 1}
    assert "job failed with Undone" in str(report)
    assert all(crash.state is JobState.FAILED for crash in report.crashes)
    assert {"booked": 1, "undone booked": 2} in [crash.effects for crash in report.broken]
    assert any(crash.point.startswith("life 2: ") and crash.ok for crash in report.crashes)


def test_a_job_that_fails_may_end_so_and_another_end_is_broken(app: Faultline, effects: Callable[[], Any]) -> None:
    @app.task(max_attempts=1)
    async def child(job: Job) -> None:
        raise LookupError("no such order")

    @app.task
    async def parent(job: Job) -> None:
        await job.atomic("begin", note, "begin")
        await job.call(child)

    report = crash_everywhere(app, parent.bind(), effects=effects, points=["before_execution", "after_execution"])

    assert "job failed with ChildFailed" in str(report)
    report.raise_if_broken()


def test_another_error_or_result_than_without_a_crash_is_broken(app: Faultline, effects: Callable[[], Any]) -> None:
    @app.task(max_attempts=1)
    async def child(job: Job) -> str:
        return "done"

    @app.task
    async def parent(job: Job) -> str:
        await job.atomic("begin", note, "begin")
        try:
            return await job.call(child)
        except ChildFailed:
            return "the child is gone"

    report = crash_everywhere(app, parent.bind(), effects=effects, points=["after_execution"])

    assert broken(report) == ["life 2: after_execution"]
    assert "result 'the child is gone' instead of 'done', job succeeded" in str(report)


def test_results_that_differ_without_a_crash_are_not_compared(app: Faultline, effects: Callable[[], Any]) -> None:
    @app.task
    async def pay(job: Job) -> str:
        await job.atomic("pay", note, "paid")
        return str(uuid4())

    report = crash_everywhere(app, pay.bind(), effects=effects, points=["before_execution"])

    report.raise_if_broken()
    assert "results were not compared" in str(report)


def test_signals_are_sent_between_lives(app: Faultline, effects: Callable[[], Any], write: Step[[str], str]) -> None:
    asked: list[Any] = []

    @app.task
    async def ask(job: Job) -> str:
        answer = await job.receive("approval", str, timeout=3600, default="nobody")
        await job.do(write, answer)
        return answer

    def approve(job: Any) -> None:
        asked.append(job.id)
        job.signal("approval", "yes")

    report = crash_everywhere(app, ask.bind(), effects=effects, points=POINTS, between=approve)

    assert report.expected == {"yes": 1}
    assert broken(report) == [f"life 2: {UNRECORDED}"]
    assert len(set(asked)) == len(report.crashes) + 1
    assert len(asked) == len(set(asked))  # once for each run: not for the pause after a crash


def test_a_point_that_is_not_reached_again_is_not_covered(app: Faultline, effects: Callable[[], Any]) -> None:
    @app.task
    async def pay(job: Job) -> None:
        first = not effects()
        await job.sleep(60)
        if first:
            await job.progress("only the first time")
        await job.atomic("pay", note, "paid")

    report = crash_everywhere(app, pay.bind(), effects=effects, points=["before_progress_sent", "after_execution"])

    assert [crash.point for crash in report.not_covered] == ["life 2: before_progress_sent"]
    assert not report.ok
    assert "NOT COVERED  life 2: before_progress_sent: not reached this time" in str(report)
    assert "1 point not covered" in str(report)
    with pytest.raises(AssertionError, match="not covered"):
        report.raise_if_broken()


def test_a_flow_that_never_ends_after_a_crash_is_broken_and_out_of_the_way(
    app: Faultline, effects: Callable[[], Any], queue: Driver, write: Step[[str], str]
) -> None:
    @app.task
    async def pay(job: Job) -> None:
        # Another run calls something else: its program has changed.
        await job.do(write, f"{sum(effects().values()) % 2}")
        await job.atomic("pay", note, "paid")

    report = crash_everywhere(
        app, pay.bind(), effects=lambda: sum(effects().values()), points=["after_record_committed", "before_execution"]
    )

    assert {crash.state for crash in report.broken} == {JobState.QUEUED}
    assert "job queued instead of job succeeded" in str(report)
    assert queue.value("select count(*) from faultline.jobs where state in ('queued', 'running')") == 0


def test_what_is_undone_leaves_no_effect_and_expect_says_so(
    app: Faultline, effects: Callable[[], Any], write: Step[[str], str], dsn: str
) -> None:
    @app.step
    async def undo(_result: str | None, what: str) -> None:
        async with await psycopg.AsyncConnection.connect(dsn) as connection:
            await connection.execute("delete from effects where what = %s", (what,))

    @app.task
    async def trip(job: Job) -> None:
        async with job.saga() as saga:
            await saga.do(write, "booked", undo=undo)
            saga.fail("the hotel is gone")

    def left() -> int:
        return sum(effects().values())

    with pytest.raises(AssertionError, match=r"job failed with Undone.*say so with expect="):
        crash_everywhere(app, trip.bind(), effects=left, points=[UNRECORDED])

    crash_everywhere(app, trip.bind(), effects=left, points=[UNRECORDED], expect=0).raise_if_broken()
