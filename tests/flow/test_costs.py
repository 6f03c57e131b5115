"""What a program costs grows with the number of its calls, and no faster. Counted, not timed."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

import pytest

from faultline import Faultline, Job
from faultline.core.faults import Faults
from faultline.core.host import Host
from faultline.history import program, race, stream_writes
from faultline.testing import drain
from tests.flow.running import ended, signals, waits

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

#: Whatever is there once makes the ratio smaller; what is quadratic makes it 16.
MORE, AT_MOST = 4, 4.6


class Lines:
    """Counts the lines that the modules of a program run: a loop over all calls shows as so many."""

    def __init__(self) -> None:
        self.count = 0
        self._files = {module.__file__ for module in (program, race, stream_writes)}

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "call":
            return self._trace if frame.f_code.co_filename in self._files else None
        self.count += event == "line"
        return self._trace

    def __enter__(self) -> None:
        sys.settrace(self._trace)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)


class Sent(Faults):
    """Counts statements by name."""

    wanted = True

    def __init__(self) -> None:
        self.names: list[str] = []

    def reach(self, point: str) -> None:
        if point.startswith("before_") and point.endswith("_sent"):
            self.names.append(point.removeprefix("before_").removesuffix("_sent"))


async def races(job: Job, step: Any, _: Any, count: int) -> None:
    for _n in range(count):
        await job.race(job.do(step), job.sleep(3600))


async def branches(job: Job, step: Any, _: Any, count: int) -> None:
    async def part(_n: int) -> int:
        job.stream("s").write(1)
        return int(await job.do(step))

    await job.gather(*(job.branch(part, n) for n in range(count)))


async def detached(job: Job, _: Any, other: Any, count: int) -> None:
    for _n in range(count):
        await job.enqueue(other)


async def patches(job: Job, step: Any, _: Any, count: int) -> None:
    for n in range(count):
        if await job.patched(f"change {n}"):
            await job.do(step)


@pytest.mark.parametrize("calls", [races, branches, detached, patches])
def test_the_first_run_and_the_replay_of_a_program_are_linear_in_its_calls(
    app: Faultline, calls: Callable[..., Any]
) -> None:
    lines: dict[tuple[str, int], int] = {}

    @app.step
    async def step() -> int:
        return 1

    @app.task(queue="elsewhere")
    async def other() -> None: ...

    @app.task(name="counted")
    async def counted(job: Job, count: int) -> None:
        counter = Lines()
        with counter:
            await calls(job, step, other, count)
        run = "replay" if ("first run", count) in lines else "first run"
        lines[run, count] = counter.count
        await job.receive("go", bool)

    for count in (20, 20 * MORE):
        handle = counted.enqueue(count)
        drain(app, "default")
        handle.signal("go", True)
        drain(app, "default")

    for run in ("first run", "replay"):
        assert lines[run, 20 * MORE] <= AT_MOST * lines[run, 20], lines


def test_a_detached_job_costs_one_statement_and_its_history_is_not_read(dsn: str) -> None:
    sent = Sent()
    app = Faultline(dsn, host=Host(faults=sent))

    @app.task(queue="elsewhere")
    async def other() -> None: ...

    @app.task
    async def program_(job: Job) -> int:
        return len({await job.enqueue(other) for _ in range(10)})

    with app:
        assert ended(app, program_.enqueue()) == 10
    assert sent.names.count("spawn") == 10
    assert sent.names.count("history") == 0


def test_a_replay_gives_way_to_the_event_loop(app: Faultline) -> None:
    turns: list[int] = []

    @app.step
    async def one(n: int) -> int:
        return n

    @app.task
    async def long(job: Job) -> int:
        ticks = 0
        is_over = False

        async def tick() -> None:
            nonlocal ticks
            while not is_over:
                ticks += 1
                await asyncio.sleep(0)

        beside = asyncio.ensure_future(tick())
        try:
            await job.do(one, -1)
            ticks = 0  # it has read the history
            for n in range(500):
                await job.do(one, n)
        finally:
            is_over = True
            turns.append(ticks)
            await beside
        return await job.receive("go", int)

    assert ended(app, long.enqueue(), waits(app), signals(app, "go", 7)) == 7
    assert turns[-1] >= 4
