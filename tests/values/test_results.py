"""Results come back as the annotations of their tasks say, and what does not fit is said where it happens."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from faultline import (
    BlockingJob,
    Fail,
    Faultline,
    Job,
    JobFailed,
    JobState,
    KeyConflict,
    Submission,
    UnreadableJson,
    values,
)
from faultline.testing import assert_enqueued, drain, frozen_time, inline
from tests.app.kinds import KINDS, task_of
from tests.app.test_arguments import ARRIVES, NOON, ORDER, Order
from tests.cli.commands import faultline
from tests.flow.running import ended
from tests.worker.working import results

if TYPE_CHECKING:
    from tests.driver import Driver


class Colour(Enum):
    RED = "red"
    GONE = "gone"


class Left(Enum):
    RED = "red"


@pytest.mark.parametrize(("annotation", "value"), ARRIVES, ids=[str(pair[0]) for pair in ARRIVES])
def test_a_result_comes_back_as_its_annotation_says(app: Faultline, annotation: Any, value: Any) -> None:
    async def give():  # type: ignore[no-untyped-def]  # noqa: ANN202 - annotated below
        return value

    give.__annotations__ = {"return": annotation | Fail if isinstance(annotation, type) else annotation}
    handle = app.task(give).enqueue()

    found = ended(app, handle)

    assert found == value
    assert type(found) is type(value)
    assert app.job(handle.id).result == json.loads(values.text_of(value, "it"))


@KINDS
def test_a_result_of_the_wrong_type_fails_the_job_once_and_says_so(app: Faultline, kind: str) -> None:
    ran: list[str] = []

    @task_of(app, kind, max_attempts=3)
    async def lacks() -> Order:
        ran.append("lacks")
        return {"number": 1}  # type: ignore[return-value]

    @task_of(app, kind, max_attempts=3)
    async def forgets() -> date:  # type: ignore[return]
        ran.append("forgets")

    @task_of(app, kind, max_attempts=3)
    async def holds() -> list[Any] | Order:
        ran.append("holds")
        return [NOON]

    errors = results(app, [lacks.enqueue(), forgets.enqueue(), holds.enqueue()])

    assert all(isinstance(error, JobFailed) for error in errors)
    assert "its result does not fit Order: {'number': 1} is not Order: it lacks the field items. Not retried" in str(
        errors[0]
    )
    assert "its result does not fit date: None is not str" in str(errors[1])
    assert "its result is a list and would arrive with other types inside; annotate what the task returns" in str(errors[2])
    assert sorted(ran) == ["forgets", "holds", "lacks"]


@pytest.mark.parametrize("value", [b"x", {1, 2}, {"a": {1}}, {1: "a"}], ids=repr)
def test_without_an_annotation_what_would_come_back_as_something_else_is_refused(app: Faultline, value: Any) -> None:
    @app.task(max_attempts=3)
    async def give():  # type: ignore[no-untyped-def]  # noqa: ANN202
        return value

    error = ended(app, give.enqueue())

    assert "cannot be stored" in str(error)


def test_without_an_annotation_a_result_is_json_as_before(app: Faultline) -> None:
    @app.task
    async def give():  # type: ignore[no-untyped-def]  # noqa: ANN202
        return {"order": ORDER, "at": NOON, "place": (1, 2)}

    assert ended(app, give.enqueue()) == {"order": values.plain(ORDER), "at": NOON.isoformat(), "place": [1, 2]}


def test_a_result_of_other_code_is_refused_by_its_handle_and_not_passed_on(app: Faultline) -> None:
    @app.task
    async def give() -> Colour:
        return Colour.GONE

    handle = give.enqueue()
    ended(app, handle)

    with pytest.raises(UnreadableJson, match=r"its result does not fit Left: 'gone' .*has 'red'.* handle.job\(\).result"):
        handle.reading(Left).result(5)
    assert app.job(handle.id).result == "gone"


def test_an_enum_value_that_was_removed_fails_the_job_at_once(app: Faultline, queue: Driver) -> None:
    ran: list[Any] = []

    @app.task(name="paint", max_attempts=5)
    async def paint(colour: Left) -> None:
        ran.append(colour)

    [handle] = app.enqueue_many([Submission("paint", '{"colour": "gone"}')])
    error = ended(app, handle)

    assert "colour does not fit its annotation: 'gone' is not a value of Left, which has 'red'" in str(error)
    assert (ran, queue.job(handle.id).attempt) == ([], 1)
    app.tasks["paint"].parameters._read["colour"] = values.reader(Colour)  # noqa: SLF001 - the code that has it again
    app.retry(handle.id)
    assert ended(app, handle) is None
    assert ran == [Colour.GONE]


@KINDS
def test_a_step_gives_what_its_function_is_annotated_with_in_each_attempt(app: Faultline, kind: str) -> None:
    seen: list[Any] = []

    def total() -> tuple[Decimal, set[date]]:
        return Decimal("1.10"), {date(2026, 1, 1)}

    def bare(x: int):  # type: ignore[no-untyped-def]  # noqa: ANN202
        return {"at": NOON, "n": x}

    @task_of(app, kind, max_attempts=2, backoff=lambda _: 0)
    async def pay(job: Job) -> None:
        seen.append(await job.step("total", total))
        seen.append(await job.step("bare", bare, 1))
        if job.attempt == 1:
            raise ValueError

    ended(app, pay.enqueue())

    assert seen == [(Decimal("1.10"), {date(2026, 1, 1)}), {"n": 1, "at": NOON.isoformat()}] * 2


@KINDS
def test_a_step_of_the_wrong_type_fails_the_job_once(app: Faultline, kind: str) -> None:
    ran: list[str] = []

    def wrong() -> Order:
        ran.append("wrong")
        return {"number": 1}  # type: ignore[return-value]

    @task_of(app, kind, max_attempts=3, backoff=lambda _: 0)
    async def pay(job: Job) -> None:
        await job.step("wrong", wrong)

    error = ended(app, pay.enqueue())

    assert "its result cannot be stored: result of step wrong does not fit its annotation: {'number': 1} is" in str(error)
    assert ran == ["wrong"]


def test_a_stored_step_that_its_annotation_no_longer_fits_fails_the_job_and_keeps_the_step(app: Faultline) -> None:
    def paint() -> Colour:
        return Colour.GONE

    def repaint() -> Left:
        raise AssertionError

    @app.task(max_attempts=3, backoff=lambda _: 0)
    async def program(job: Job) -> None:
        await job.step("paint", paint if job.attempt == 1 else repaint)
        raise ValueError

    error = ended(app, program.enqueue())

    assert "the stored result of step paint does not fit its annotation: 'gone'" in str(error)


def test_handles_of_many_jobs_of_graphs_and_forks_read_results_too(app: Faultline) -> None:
    @app.task
    async def ship(order: Order) -> Order:
        return order

    many = app.enqueue_many([ship.bind(ORDER)])[0]
    flow = app.flow("orders")
    flow.add(ship, ORDER, name="one")
    graph = flow.enqueue().jobs["one"]
    first = ship.enqueue(ORDER)

    assert results(app, [many, graph, first]) == [ORDER] * 3
    assert results(app, [first.fork(args={"order": ORDER})]) == [ORDER]


def test_types_survive_schedules_backfills_retries_and_the_helpers_of_tests(app: Faultline) -> None:
    got: list[Any] = []

    @app.schedule(every=3600, kwargs={"order": ORDER, "days": {date(2026, 1, 1)}}, tick_arg="at")
    @app.task(max_attempts=1)
    async def report(order: Order, days: set[date], at: datetime) -> tuple[Order, set[date], datetime]:
        got.append((order, days, at))
        if len(got) == 1:
            raise ValueError
        return order, days, at

    with frozen_time(app) as clock:
        app.schedules.set("at run time", report.bind(ORDER, set(), NOON), every=3600)
        job_id = app.schedules.run_now("at run time")
        assert_enqueued(app, report, args={"order": ORDER, "days": set()}, count=1)
        assert drain(app).failed == 1
        app.retry(job_id)
        assert drain(app).succeeded == 1
        clock.advance(timedelta(hours=3))
        assert app.schedules.backfill("at run time", clock.now - timedelta(hours=2), clock.now) >= 1
        assert drain(app).succeeded >= 1

    assert {(repr(order), repr(days), at) for order, days, at in got} == {(repr(ORDER), "set()", NOON)}


def test_types_survive_inline_runs(app: Faultline) -> None:
    @app.task
    def ship(job: BlockingJob, order: Order, parts: tuple[int, ...]) -> tuple[Order, tuple[int, ...]]:
        return order, parts

    with inline(app):
        assert ship.enqueue(ORDER, (1, 2)).result(5) == (ORDER, (1, 2))


def test_keys_groups_and_uniqueness_see_what_is_stored(app: Faultline) -> None:
    @app.task(group="{colour}-{at}-{order.number}")
    async def paint(colour: Colour, at: date, order: Order, tags: frozenset[str] = frozenset()) -> None: ...

    alone = paint.options(unique="queued")

    tags = frozenset({"a", "b", "c"})
    first = alone.enqueue(Colour.RED, date(2026, 1, 1), ORDER, tags)
    same = alone.enqueue("red", "2026-01-01", values.plain(ORDER), ["a", "b", "c"])  # type: ignore[arg-type]
    other = alone.enqueue(Colour.RED, date(2026, 1, 2), ORDER, tags)

    assert app.job(first.id).group == "red-2026-01-01-1"
    assert (same.id == first.id, same.created, other.created) == (True, False, True)
    keyed = paint.options(idempotency_key="k")
    assert keyed.enqueue(Colour.RED, NOON.date(), ORDER, tags).created
    assert not keyed.enqueue(Colour.RED, NOON.date(), ORDER, frozenset(sorted(tags, reverse=True))).created
    with pytest.raises(KeyConflict):
        keyed.enqueue(Colour.RED, NOON.date(), ORDER, frozenset({"a"}))


def test_a_set_is_stored_in_one_order_whatever_the_process(tmp_path: Any) -> None:
    program = "from faultline import values; print(values.args_text({'x': {'a', 'b', 'c', 'd', 1.5}}, 'x'))"
    said = {
        subprocess.run(
            [sys.executable, "-c", program], env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2", "3")
    }

    assert len(said) == 1


def test_people_see_json(app: Faultline, dsn: str) -> None:
    @app.task
    async def ship(order: Order, at: datetime) -> tuple[Order, set[date]]:
        return order, {date(2026, 1, 2), date(2026, 1, 1)}

    handle = ship.enqueue(ORDER, datetime(2026, 1, 1, tzinfo=UTC))
    ended(app, handle)

    shown = json.loads(faultline("job", str(handle.id), "--json", FAULTLINE_DSN=dsn).stdout)
    assert shown["args"] == {"order": values.plain(ORDER), "at": "2026-01-01T00:00:00+00:00"}
    assert shown["result"] == [values.plain(ORDER), ["2026-01-01", "2026-01-02"]]


def test_what_a_build_before_has_stored_is_read(app: Faultline) -> None:
    @app.task(name="old")
    async def old(wait: timedelta, at: datetime, order: Order) -> list[Any]:
        return [wait.total_seconds(), at.isoformat(), order.number]

    text = '{"wait": 5400.0, "at": "2026-11-17T12:00:00+00:00", "order": {"number": 1, "items": []}}'
    [handle] = app.enqueue_many([Submission("old", text)])

    assert ended(app, handle) == [5400.0, NOON.isoformat(), 1]
    assert values.plain([timedelta(minutes=90), NOON, UUID(int=1), Decimal("1.0"), date(2026, 1, 1)]) == [
        5400.0, "2026-11-17T12:00:00+00:00", "00000000-0000-0000-0000-000000000001", "1.0", "2026-01-01"
    ]  # fmt: skip


def test_a_failed_job_keeps_its_arguments_for_a_retry(app: Faultline, queue: Driver) -> None:
    @app.task(name="pay", max_attempts=1)
    async def pay(order: Order) -> None: ...

    [handle] = app.enqueue_many([Submission("pay", '{"order": 1}')])
    ended(app, handle)

    assert queue.job(handle.id).state is JobState.FAILED
    assert app.job(handle.id).args == {"order": 1}


def test_two_applications_with_one_task_name_are_logged(app: Faultline, caplog: pytest.LogCaptureFixture) -> None:
    other = Faultline(app.dsn)

    @app.task(name="send")
    async def send() -> None: ...

    @other.task(name="send")
    async def another() -> None: ...

    @other.task(name="mail", queue="elsewhere")
    async def mail() -> None: ...

    with caplog.at_level("WARNING", "faultline.events"):
        app.worker()
        app.worker()
        assert _shared(caplog) == []
        other.worker({"elsewhere": 1})
        assert _shared(caplog) == []
        other.worker()
    ((name, function, other_function),) = _shared(caplog)
    assert name == "send"
    assert function.endswith("another")
    assert other_function.endswith("send")


def _shared(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, str]]:
    fields = [vars(one) for one in caplog.records if vars(one).get("faultline_event") == "task_name_shared"]
    return [
        (one["faultline_fields"]["task"], one["faultline_fields"]["function"], one["faultline_fields"]["other_function"])
        for one in fields
    ]
