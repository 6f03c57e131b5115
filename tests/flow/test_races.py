"""A race is won by what was over first by the database's record, whoever looks when and in whatever order."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import TYPE_CHECKING, Any

import pytest

from faultline import BlockingJob, ChildFailed, Faultline, Job, JobFailed, SignalTimeout, StepFailed
from faultline.core.errors import DatabaseUnavailable
from faultline.history.ending import Interrupted
from faultline.testing import drain, frozen_time
from tests.app.kinds import KINDS, task_of
from tests.flow.running import calls, ended, job_of, signals
from tests.worker.working import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from faultline.testing import FrozenTime

HOUR, DAY = 3600, 24 * 3600


@pytest.fixture
def time(app: Faultline) -> Iterator[FrozenTime]:
    with frozen_time(app) as frozen:
        yield frozen


def away(app: Faultline, time: FrozenTime, handle: Any, *then: tuple[float, Callable[[], Any]], back: float) -> Any:
    """The result of a job whose workers are away once it waits: what happens after so many seconds, and when they return."""
    drain(app)
    gone = 0.0
    for seconds, happens in then:
        time.advance(seconds - gone)
        gone = seconds
        happens()
    time.advance(back - gone)
    drain(app)
    try:
        return handle.result(timeout=5)
    except JobFailed as error:
        return error


@KINDS
def test_a_signal_that_came_in_time_wins_against_a_sleep_that_stands_before_it(
    app: Faultline, time: FrozenTime, kind: str
) -> None:
    @task_of(app, kind)
    async def program(job: Job) -> list[Any]:
        make: Any = getattr(job, "later", job)
        return list(await job.race(make.sleep(HOUR), make.receive("answer", str)))

    handle = program.enqueue()

    assert away(app, time, handle, (10, lambda: handle.signal("answer", "yes")), back=2 * HOUR) == [1, "yes"]
    assert calls(app, handle)["1"]["outcome"] == "closed"


@KINDS
def test_a_signal_that_came_too_late_loses_against_a_sleep_that_stands_behind_it_and_is_kept(
    app: Faultline, time: FrozenTime, kind: str
) -> None:
    @task_of(app, kind)
    async def program(job: Job) -> list[Any]:
        make: Any = getattr(job, "later", job)
        won = await job.race(make.receive("answer", str), make.sleep(HOUR))
        return [*won, await job.receive("answer", str)]

    handle = program.enqueue()

    late = (1.5 * HOUR, lambda: handle.signal("answer", "late"))
    assert away(app, time, handle, late, back=2 * HOUR) == [1, None, "late"]


def test_a_timeout_does_not_win_against_a_sleep_that_ended_before_it(app: Faultline, time: FrozenTime) -> None:
    @app.task
    async def program(job: Job) -> list[Any]:
        return list(await job.race(job.receive("answer", str, timeout=HOUR, default="none"), job.sleep(60)))

    assert away(app, time, program.enqueue(), back=DAY) == [1, None]


def test_a_timeout_that_was_over_before_its_signal_came_wins_and_the_signal_is_kept(
    app: Faultline, time: FrozenTime
) -> None:
    @app.task
    async def program(job: Job) -> list[Any]:
        won = await job.race(job.sleep(2 * HOUR), job.receive("answer", str, timeout=HOUR, default="none"))
        return [*won, await job.receive("answer", str)]

    handle = program.enqueue()

    late = (1.5 * HOUR, lambda: handle.signal("answer", "late"))
    assert away(app, time, handle, late, back=3 * HOUR) == [1, "none", "late"]


@pytest.mark.parametrize("days", [29, 30, 365])
@pytest.mark.parametrize("how", ["plain", "branch"])
def test_a_receive_without_a_timeout_has_no_limit_in_a_race(app: Faultline, time: FrozenTime, days: int, how: str) -> None:
    @app.task
    async def program(job: Job) -> list[Any]:
        async def stopped() -> str:
            return await job.receive("stop", str)

        stop = job.receive("stop", str) if how == "plain" else job.branch(stopped)
        return list(await job.race(stop, job.sleep(days * DAY)))

    assert away(app, time, program.enqueue(), back=(days + 2) * DAY) == [1, None]


def test_the_branch_that_slept_shorter_wins_wherever_it_stands(app: Faultline, time: FrozenTime) -> None:
    @app.task
    async def program(job: Job) -> list[Any]:
        async def nap(seconds: float) -> float:
            await job.sleep(seconds)
            return seconds

        return list(await job.race(job.branch(nap, 2 * HOUR), job.branch(nap, 60)))

    assert away(app, time, program.enqueue(), back=DAY) == [1, 60]


def test_a_branch_counts_from_its_last_wait_and_what_lost_received_nothing(app: Faultline, time: FrozenTime) -> None:
    @app.task
    async def program(job: Job) -> list[Any]:
        async def two() -> str:
            return await job.receive("a", str) + await job.receive("b", str)

        won = await job.race(job.branch(two), job.sleep(60))
        return [*won, await job.receive("b", str)]

    handle = program.enqueue()
    sent = [(10, lambda: handle.signal("a", "A")), (90, lambda: handle.signal("b", "B"))]

    assert away(app, time, handle, *sent, back=DAY) == [1, None, "B"]
    assert {number: call["outcome"] for number, call in calls(app, handle).items()} == {
        "1.1": "done", "1.2": "closed", "2": "done", "3": "done", "4": "done"
    }  # fmt: skip


@pytest.mark.parametrize("how", ["call", "watch"])
@pytest.mark.parametrize("first", [True, False])
def test_a_job_counts_from_when_it_ended(app: Faultline, time: FrozenTime, how: str, *, first: bool) -> None:
    @app.task(queue="children")
    async def child() -> str:
        return "child"

    @app.task
    async def program(job: Job, other: str) -> list[Any]:
        called: Any = job.call(child) if how == "call" else job.watch(other)
        return list(await job.race(job.receive("answer", str), called))

    other = child.enqueue()
    handle = program.enqueue(str(other.id))
    drain(app, "default")
    for happens in (lambda: drain(app, "children"), lambda: handle.signal("answer", "yes"))[:: 1 if first else -1]:
        time.advance(60)
        happens()
    time.advance(DAY)
    drain(app)

    assert handle.result(timeout=5) == ([1, "child"] if first else [0, "yes"])


def test_a_child_that_failed_before_the_time_was_over_wins_by_its_error(app: Faultline, time: FrozenTime) -> None:
    @app.task(queue="children", max_attempts=1)
    async def bad(n: int) -> None:
        if n == 1:
            raise ValueError("bad")

    @app.task
    async def program(job: Job) -> str:
        try:
            await job.race(job.sleep(HOUR), job.map(bad, [0, 1], on_failure="fast"))
        except ChildFailed:
            return "failed"
        return "slept"

    handle = program.enqueue()

    assert away(app, time, handle, (60, lambda: drain(app, "children")), back=DAY) == "failed"


def test_of_equal_moments_the_first_argument_wins(app: Faultline, time: FrozenTime) -> None:
    @app.task
    async def program(job: Job) -> list[Any]:
        late, early = job.receive("b", str), job.receive("a", str)
        return list(await job.race(early, late))

    handle = program.enqueue()
    both = (60, lambda: (handle.signal("b", "B"), handle.signal("a", "A")))

    assert away(app, time, handle, both, back=HOUR) == [0, "A"]


def test_races_inside_each_other_are_won_by_what_was_first_in_all_of_them(app: Faultline, time: FrozenTime) -> None:
    @app.task
    async def program(job: Job) -> list[Any]:
        async def asks() -> Any:
            return list(await job.race(job.sleep(2 * HOUR), job.receive("x", str)))

        won = await job.race(job.race(job.receive("never", str), job.sleep(3 * HOUR)), job.branch(asks), job.sleep(HOUR))
        return [won.index, won.value]

    handle = program.enqueue()

    assert away(app, time, handle, (60, lambda: handle.signal("x", "X")), back=DAY) == [1, [1, "X"]]


def test_a_gather_in_a_race_counts_from_its_last(app: Faultline, time: FrozenTime) -> None:
    @app.task
    async def program(job: Job) -> list[Any]:
        both: Any = job.gather(job.receive("a", str), job.receive("b", str))
        won = await job.race(both, job.sleep(HOUR))
        return [won.index, won.value]

    first, second = program.enqueue(), program.enqueue()
    drain(app)
    for handle, seconds in ((first, 60), (second, 2 * HOUR)):
        handle.signal("a", "A")
        time.advance(seconds)
        handle.signal("b", "B")
    time.advance(DAY)
    drain(app)

    assert first.result(timeout=5) == [0, ["A", "B"]]
    assert second.result(timeout=5) == [1, None]


def test_a_deploy_and_a_backlog_change_no_winner(app: Faultline, time: FrozenTime) -> None:
    """Each round sees what came first in it, however late all of it is looked at."""

    @app.task
    async def program(job: Job) -> list[Any]:
        found = []
        for _ in range(3):
            won = await job.race(job.sleep(60), job.receive("x", int))
            found.append([won.index, won.value])
        return found

    handle = program.enqueue()
    drain(app)
    time.advance(10)
    handle.signal("x", 1)
    time.advance(HOUR)
    drain(app)  # the second round begins here, an hour late
    time.advance(61)
    handle.signal("x", 2)
    time.advance(HOUR)
    drain(app)  # the third round begins with a signal that is kept

    assert handle.result(timeout=5) == [[1, 1], [0, None], [1, 2]]
    assert job_of(app, handle)["attempt"] <= 1


def test_a_step_does_not_begin_if_a_wait_beside_it_was_over_before(app: Faultline, time: FrozenTime) -> None:
    ran: list[str] = []

    @app.step
    async def charge() -> None:
        ran.append("charged")

    @app.task
    async def program(job: Job) -> list[Any]:
        async def asks() -> None:
            await job.receive("go", str)
            await job.do(charge)

        return list(await job.race(job.branch(asks), job.sleep(60)))

    handle = program.enqueue()

    assert away(app, time, handle, (90, lambda: handle.signal("go", "on")), back=HOUR) == [1, None]
    assert ran == []


def test_a_branch_wins_against_a_step_that_takes_long(app: Faultline) -> None:
    @app.step
    async def slow() -> None:
        await asyncio.sleep(PATIENCE)

    @app.task
    async def program(job: Job) -> list[Any]:
        async def asks() -> str:
            return await job.receive("go", str)

        return list(await job.race(job.do(slow), job.branch(asks)))

    assert ended(app, program.enqueue(), signals(app, "go", "on")) == [1, "on"]


def test_a_branch_of_a_blocking_race_wins_against_a_step_that_takes_long(app: Faultline) -> None:
    enough = threading.Event()

    @app.step
    def slow() -> None:
        enough.wait(PATIENCE)

    @app.task
    def program(job: BlockingJob) -> list[Any]:
        def asks() -> str:
            return job.receive("go", str)

        return list(job.race(job.later.do(slow), job.later.branch(asks)))

    try:
        assert ended(app, program.enqueue(), signals(app, "go", "on")) == [1, "on"]
    finally:
        enough.set()


def test_a_step_that_failed_wins_by_its_error(app: Faultline) -> None:
    @app.step
    async def bad() -> None:
        raise ValueError("bad")

    @app.task
    async def program(job: Job) -> str:
        try:
            await job.race(job.sleep(HOUR), job.do(bad))
        except StepFailed as error:
            await job.sleep(0.01)
            return error.kind
        return "slept"

    assert ended(app, program.enqueue()) == "ValueError"


@pytest.mark.parametrize("before", ["the race is recorded", "the wait is recorded"])
def test_a_step_that_had_ended_before_a_crash_wins_although_its_sleep_is_over_then(
    app: Faultline, time: FrozenTime, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    from faultline.flow import recording  # noqa: PLC0415

    record = recording.Recording._record  # noqa: SLF001 - the run must end right before it
    crashed: list[int] = []

    async def crashes(self: Any, call: Any, *given: Any, text: str | None = None) -> None:
        if call.kind == "race" and not crashed:
            crashed.append(1)
            raise self._program().end(Interrupted(DatabaseUnavailable("the connection is lost")))
        await record(self, call, *given, text=text)

    monkeypatch.setattr(recording.Recording, "_record", crashes)
    ran: list[int] = []

    @app.step
    async def quick() -> str:
        ran.append(1)
        if before == "the wait is recorded":
            time.advance(2 * HOUR)
        return "quick"

    @app.task(backoff=lambda _: 60)
    async def program(job: Job) -> list[Any]:
        return list(await job.race(job.sleep(HOUR), job.do(quick)))

    wanted = [1, "quick"] if before == "the race is recorded" else [0, None]
    handle = program.enqueue()
    drain(app)
    time.advance(3 * HOUR)
    drain(app)

    assert crashed == [1]
    assert handle.result(timeout=5) == wanted
    assert ran == [1]


def test_a_timeout_without_a_default_that_was_first_ends_the_race(app: Faultline, time: FrozenTime) -> None:
    @app.task
    async def program(job: Job) -> str:
        try:
            await job.race(job.sleep(HOUR), job.receive("x", str, timeout=60))
        except SignalTimeout:
            return "timeout"
        return "slept"

    assert away(app, time, program.enqueue(), back=DAY) == "timeout"


@pytest.mark.parametrize("is_inner", [False, True])
def test_a_sleep_beside_a_step_that_ended_before_is_asked_for_when_its_time_comes(
    app: Faultline,
    is_inner: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    runs: list[int] = []

    @app.step
    def one() -> int:
        return 1

    @app.task
    async def program(job: Job) -> int:
        runs.append(1)
        first: Any = job.gather(job.do(one), job.sleep(0.5))
        if is_inner:
            first = job.race(first, job.sleep(1000))
        return (await job.race(first, job.sleep(2000))).index

    assert ended(app, program.enqueue()) == 0
    assert len(runs) <= 3


def test_a_loser_that_waited_for_several_leaves_nothing_for_asyncio_to_log(
    app: Faultline, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task
    async def program(job: Job) -> int:
        async def loser() -> None:
            await job.gather(job.sleep(DAY), job.sleep(DAY))

        return (await job.race(job.branch(loser), job.receive("go", int))).index

    handle = program.enqueue()

    assert ended(app, handle, signals(app, "go", 1)) == 1
    gc.collect()
    assert [one.getMessage() for one in caplog.records if one.name == "asyncio"] == []
