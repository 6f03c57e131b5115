"""Times, numbers and values at their bounds: each is refused with words, or is the same in every run."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from math import inf, nan
from typing import Any

import psycopg
import pytest

from faultline import Faultline, Job, JobFailed
from tests.app.kinds import KINDS, task_of
from tests.flow.running import calls, ended, job_of, journal, signals, waits

WEST, EAST = timezone(timedelta(hours=-12)), timezone(timedelta(hours=14))


BAD_TIMES: list[tuple[str, Any, str]] = [
    ("sleep_until", datetime.max.replace(tzinfo=WEST), "before the year 9999"),
    ("sleep_until", datetime(9999, 1, 1, tzinfo=UTC), "before the year 9999"),
    ("sleep_until", datetime(2030, 1, 1), "with a time zone"),  # noqa: DTZ001 - the fault
    ("sleep_until", 5.0, "with a time zone"),
    ("sleep", inf, "a number of seconds or a timedelta"),
    ("sleep", nan, "a number of seconds or a timedelta"),
    ("sleep", timedelta.max, "must be between"),
    ("receive", inf, "a number of seconds or a timedelta"),
    ("receive", nan, "a number of seconds or a timedelta"),
    ("receive", timedelta.max, "must be between"),
]


@KINDS
def test_a_time_that_nobody_can_wait_for_is_refused_and_the_program_may_go_on(app: Faultline, kind: str) -> None:
    @task_of(app, kind)
    async def program(job: Job) -> list[str]:
        told = []
        for method, given, _ in BAD_TIMES:
            try:
                if method == "receive":
                    await job.receive("go", str, timeout=given)
                else:
                    await getattr(job, method)(given)
            except Exception as error:  # noqa: BLE001 - the test judges it
                told.append(str(error))
        await job.receive("go", str)
        return told

    handle = program.enqueue()
    told = ended(app, handle, waits(app), signals(app, "go", "now"))

    for (method, given, why), found in zip(BAD_TIMES, told, strict=True):
        assert why in found, (method, given)
    assert list(calls(app, handle)) == ["1"]


@KINDS
def test_a_time_long_past_is_over_at_once_in_every_run(app: Faultline, kind: str) -> None:
    times = [datetime.min.replace(tzinfo=EAST), datetime.min.replace(tzinfo=UTC), datetime(1960, 2, 29, tzinfo=UTC)]

    @task_of(app, kind)
    async def program(job: Job) -> str:
        for time in times:
            await job.sleep_until(time)
        return await job.receive("go", str)

    assert ended(app, program.enqueue(), waits(app), signals(app, "go", "now")) == "now"


@KINDS
def test_the_last_time_that_can_be_waited_for_can_be_read(app: Faultline, kind: str) -> None:
    last = datetime(9998, 12, 31, 23, 59, 59, tzinfo=WEST)

    @task_of(app, kind)
    async def program(job: Job) -> Any:
        make: Any = getattr(job, "later", job)
        return (await job.race(make.receive("go", str), make.sleep_until(last))).value

    handle = program.enqueue()

    assert ended(app, handle, waits(app), signals(app, "go", "now")) == "now"


@KINDS
def test_a_step_races_against_a_time_that_is_centuries_away(app: Faultline, kind: str) -> None:
    @app.step
    def step() -> str:
        return "done"

    @task_of(app, kind, max_attempts=1)
    async def program(job: Job) -> Any:
        make: Any = getattr(job, "later", job)
        return (await job.race(make.do(step), make.sleep_until(datetime(9000, 1, 1, tzinfo=UTC)))).value

    assert ended(app, program.enqueue()) == "done"


@KINDS
@pytest.mark.parametrize("leaf", ["step", "sleep", "patched"])
def test_branches_too_deep_are_refused_with_words_and_the_job_has_failed(app: Faultline, kind: str, leaf: str) -> None:
    @app.step
    def step() -> int:
        return 1

    @task_of(app, kind, max_attempts=2, backoff=lambda _: 0)
    async def program(job: Job, depth: int) -> Any:
        async def down(n: int) -> Any:
            if n:
                return await job.branch(down, n - 1)
            if leaf == "patched":
                await job.patched("newer")
            return await (job.sleep(0.01) if leaf == "sleep" else job.do(step))

        return await job.branch(down, depth)

    deep, too_deep = program.enqueue(85), program.enqueue(120)
    error = ended(app, too_deep)

    assert isinstance(error, JobFailed)
    assert "branches inside each other" in str(error)
    assert job_of(app, too_deep)["attempt"] == 1
    assert ended(app, deep) == (None if leaf == "sleep" else 1)


#: What a producer in SQL may send, and what the program reads.
PAYLOADS = {
    "1e400": "UnreadableJson",
    '{"a": [1e400]}': "UnreadableJson",
    "[" * 600 + "]" * 600: "UnreadableJson",
    '{"a":' * 1500 + "1" + "}" * 1500: "UnreadableJson",
    "[" * 254 + "]" * 254: "[" * 254 + "]" * 254,
    "123456789012345678901234567890": "1.2345678901234568e+29",
    "1e20": "1e+20",
    "18446744073709551616": "1.8446744073709552e+19",
    "-0.0": "0.0",
}


@KINDS
def test_signals_of_a_foreign_producer_are_the_same_in_every_run(app: Faultline, kind: str) -> None:
    runs: list[list[str]] = []

    @task_of(app, kind, max_attempts=2, backoff=lambda _: 0)
    async def program(job: Job) -> Any:
        await job.receive("begin", str)
        got = []
        for _ in PAYLOADS:
            try:
                got.append(repr(await job.receive("go", Any)))
            except Exception as error:  # noqa: BLE001 - the test judges it
                got.append(type(error).__name__)
        runs.append(got)
        await job.sleep(0.01)
        return got

    handle = program.enqueue()

    async def send(_: Any) -> None:
        with psycopg.connect(app.dsn) as connection:
            for payload in PAYLOADS:
                connection.execute("select faultline.signal(%s, 'go', %s::jsonb)", (handle.id, payload))

    expected = list(PAYLOADS.values())
    assert ended(app, handle, waits(app), send, signals(app, "begin", "now")) == expected
    assert runs == [expected, expected]
    assert journal(app, handle, "program_changed") == []


@KINDS
@pytest.mark.parametrize("how", ["call", "watch", "map"])
def test_a_result_of_a_foreign_worker_that_python_cannot_read_is_the_same_error_in_every_run(
    app: Faultline, kind: str, how: str
) -> None:
    read: list[str] = []

    @app.task(queue="foreign")
    async def child(item: int) -> Any:
        return item

    @task_of(app, kind, max_attempts=2, backoff=lambda _: 0)
    async def program(job: Job, other: str) -> str:
        try:
            if how == "watch":
                await job.watch(other)
            elif how == "map":
                await job.map(child, [1])
            else:
                await job.call(child, 1)
            got = "read"
        except Exception as error:  # noqa: BLE001 - the test judges it
            got = str(error)
        read.append(got)
        await job.sleep(0.01)
        return got

    other = child.enqueue(0)

    async def work_in_sql(_: Any) -> None:
        with psycopg.connect(app.dsn) as connection:
            for job_id, token in connection.execute(
                "select job_id, fencing_token from faultline.claim('foreign', 'sql', 5)"
            ).fetchall():
                connection.execute(
                    "select faultline.complete(array[%s::uuid], array[%s::bigint], array['sql'], '[1e400]')",
                    (job_id, token),
                )

    handle = program.enqueue(str(other.id))
    result = ended(app, handle, waits(app), work_in_sql)

    assert "cannot be read" in result
    assert set(read) == {result}
    assert len(read) > 1
