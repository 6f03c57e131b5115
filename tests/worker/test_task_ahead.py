"""A process whose jobs are quick is given one ahead. That job is run once, by this process or another, whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import os
import signal
import socket
from copy import copy
from typing import TYPE_CHECKING, Any

import pytest

from faultline import Processes
from faultline.core.running import job_fields
from faultline.worker.run.processes import task_process, task_processes
from faultline.worker.run.processes.answers import value_of
from faultline.worker.run.processes.main import _Jobs, _run, _Runner, _Wire
from faultline.worker.run.processes.reset import Surroundings
from faultline.worker.run.processes.task_process import ProcessDied
from faultline.worker.run.processes.task_processes import TaskProcesses
from faultline.worker.write.endings import TimedOut
from tests.waiting import auntil
from tests.worker import computing
from tests.worker.test_runner import Line, held

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from faultline.app.tasks import Task
    from faultline.worker.lease.held_lease import HeldLease

PATIENCE = 90.0
LARGE = "x" * 1_000_000


class Jobs(Line):
    """Jobs that are given to processes by hand, in this order."""

    def __init__(self, size: int) -> None:
        super().__init__(computing.app, [])
        self.processes = TaskProcesses(size, computing.app.tasks.values())
        #: A last attempt never runs again.
        self.max_attempts = 1

    def start(self, task: str, limit: float | None = None, **args: Any) -> asyncio.Task[Any]:
        hold = held(task)
        hold.lease.args, hold.lease.max_attempts = args, self.max_attempts
        return asyncio.create_task(self._result(hold, computing.app.tasks[task], limit))

    async def _result(self, hold: HeldLease, task: Task[..., Any], limit: float | None) -> Any:
        return value_of(await self.processes.run(hold, task, limit, self), task)

    async def started(self, task: str, file: Path, limit: float | None = None) -> asyncio.Task[Any]:
        """It has begun, and ends when something is written to the file."""
        job = self.start(task, limit, file=str(file))
        await auntil(lambda: file.exists() and file.read_text())
        await auntil(lambda: any(one.calls and one.calls[-1].began_at is not None for one in self.living))
        return job

    async def given_ahead(self, task: str, limit: float | None = None, **args: Any) -> asyncio.Task[Any]:
        job = self.start(task, limit, **args)
        await auntil(lambda: 2 in self.given)
        return job

    @property
    def living(self) -> list[task_process.TaskProcess]:
        return self.processes._living  # noqa: SLF001

    @property
    def given(self) -> list[int]:
        """How many jobs each process has."""
        return [len(process.calls) for process in self.living]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is, jobs are quick."""
    monkeypatch.setattr(task_process, "QUICK_SECONDS", 1000.0)
    monkeypatch.setattr(task_processes, "QUICK_SECONDS", 1000.0)


def run(story: Callable[[Jobs], Awaitable[Any]], size: int = 1) -> Any:
    """With so many processes that have run a job each."""

    async def main() -> Any:
        jobs = Jobs(size)
        try:
            async with asyncio.timeout(PATIENCE):
                await asyncio.gather(*(jobs.start("measure", text="") for _ in range(size)))
                await auntil(lambda: len(jobs.living) == size and all(one.is_ready for one in jobs.living))
                for one in jobs.living:
                    one.is_quick = True
                found = await story(jobs)
                assert (jobs.computing, jobs.queued) == (0, 0)
                return found
        finally:
            await jobs.processes.close()

    return asyncio.run(main())


def test_the_job_behind_one_whose_process_dies_runs_in_another(tmp_path: Path) -> None:
    file = tmp_path / "pid"

    async def story(jobs: Jobs) -> Any:
        first = await jobs.started("die_after", file)
        pid = file.read_text()
        second = await jobs.given_ahead("measure", text="abc")
        file.write_text("die")
        with pytest.raises(ProcessDied, match="SIGKILL"):
            await first
        return int(pid), await second

    pid, (size, other) = run(story)
    assert size == 3
    assert other != pid


@pytest.fixture
def reported(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """The status of a process that has ended comes when this is set."""
    event, report = asyncio.Event(), TaskProcesses._report  # noqa: SLF001

    async def late(*args: Any) -> None:
        await event.wait()
        await report(*args)

    monkeypatch.setattr(TaskProcesses, "_report", late)
    return event


def test_the_job_of_a_process_that_died_runs_again_in_a_new_one(tmp_path: Path, reported: asyncio.Event) -> None:
    file = tmp_path / "pid"

    async def story(jobs: Jobs) -> Any:
        jobs.max_attempts = 2
        first = await jobs.started("wait_for", file)
        died = file.read_text()
        os.kill(int(died), signal.SIGKILL)
        _, used = await jobs.start("measure", text="abc")
        reported.set()
        await auntil(lambda: file.read_text() not in ("", died))
        new = file.read_text()
        file.write_text("go on")
        return await first, {int(died), used, int(new)}

    said, pids = run(story)
    assert said == "go on"
    assert len(pids) == 3


def test_a_job_that_is_cancelled_while_its_process_dies_does_not_run_again(tmp_path: Path, reported: asyncio.Event) -> None:
    file = tmp_path / "pid"

    async def story(jobs: Jobs) -> Any:
        jobs.max_attempts = 2
        first = await jobs.started("wait_for", file)
        died = file.read_text()
        os.kill(int(died), signal.SIGKILL)
        await auntil(lambda: not jobs.living)
        first.cancel()
        await asyncio.wait([first])
        reported.set()
        await jobs.start("measure", text="abc")
        return died

    assert run(story) == file.read_text()


def test_a_timeout_ends_the_job_that_it_belongs_to(tmp_path: Path) -> None:
    async def story(jobs: Jobs) -> Any:
        first = await jobs.started("wait_for", tmp_path / "pid", limit=1.0)
        second = await jobs.given_ahead("measure", text="abc")
        with pytest.raises(TimedOut):
            await first
        return await second

    assert run(story)[0] == 3


def test_the_time_of_a_job_ahead_starts_when_it_begins(tmp_path: Path) -> None:
    file = tmp_path / "pid"

    async def story(jobs: Jobs) -> Any:
        first = await jobs.started("wait_for", file)
        second = await jobs.given_ahead("wait_for", 0.5, file=str(tmp_path / "other"))
        await asyncio.sleep(1.0)  # longer than the second one may take
        assert not second.done()
        file.write_text("go on")
        await first
        with pytest.raises(TimedOut):
            await second

    run(story)


def test_a_job_ahead_that_is_cancelled_never_runs(tmp_path: Path) -> None:
    file, never = tmp_path / "pid", tmp_path / "never"

    async def story(jobs: Jobs) -> Any:
        first = await jobs.started("wait_for", file)
        pid = file.read_text()
        second = await jobs.given_ahead("pid_into", file=str(never))
        second.cancel()
        await asyncio.wait([second])
        file.write_text("go on")
        assert await first == "go on"
        return pid, await jobs.start("measure", text="")

    pid, (_, same) = run(story)
    assert int(pid) == same  # it was not killed
    assert not never.exists()


def test_the_job_behind_one_that_is_cancelled_runs_in_another_process(tmp_path: Path) -> None:
    async def story(jobs: Jobs) -> Any:
        first = await jobs.started("wait_for", tmp_path / "pid")
        second = await jobs.given_ahead("measure", text="abc")
        first.cancel()
        return await second

    assert run(story)[0] == 3


def test_a_job_ahead_goes_to_a_process_that_is_free(tmp_path: Path) -> None:
    files = [tmp_path / "one", tmp_path / "two"]

    async def story(jobs: Jobs) -> Any:
        held_up = [await jobs.started("wait_for", file) for file in files]
        await auntil(lambda: all(one.calls and one.calls[0].began_at is not None for one in jobs.living))
        behind = await jobs.given_ahead("measure", text="abc")
        (busy,) = [one for one in jobs.living if len(one.calls) == 2]
        (file,) = [file for file in files if file.read_text() != str(busy._process.pid)]  # noqa: SLF001
        free = int(file.read_text())
        file.write_text("go on")
        found = await behind, free
        assert sum(job.done() for job in held_up) == 1
        for file in files:
            file.write_text("go on")
        await asyncio.gather(*held_up)
        return found

    (size, pid), free = run(story, size=2)
    assert (size, pid) == (3, free)


def test_a_job_ahead_is_taken_back_when_its_turn_does_not_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "pid"
    monkeypatch.setattr(task_processes, "QUICK_SECONDS", 0.05)

    async def story(jobs: Jobs) -> Any:
        first = await jobs.started("wait_for", file)
        second = jobs.start("measure", text="abc")
        await auntil(lambda: not jobs.living[0].is_quick)
        assert jobs.given == [1]
        third = jobs.start("measure", text="abcd")
        await asyncio.sleep(0)
        assert jobs.given == [1]  # nor is it given another one
        file.write_text("go on")
        await first
        return [(await second)[0], (await third)[0]]

    assert run(story) == [3, 4]


def test_large_jobs_come_through_whole(tmp_path: Path) -> None:
    file = tmp_path / "pid"

    async def story(jobs: Jobs) -> Any:
        first = await jobs.started("wait_for", file)
        dropped = await jobs.given_ahead("measure", text=LARGE)
        dropped.cancel()
        await asyncio.wait([dropped])
        second = await jobs.given_ahead("measure", text=LARGE + "abc")
        file.write_text("go on")
        await first
        return [(await second)[0], (await jobs.start("measure", text=LARGE + LARGE))[0]]

    assert run(story) == [len(LARGE) + 3, 2 * len(LARGE)]


def test_a_process_runs_no_more_jobs_than_it_may() -> None:
    async def story(jobs: Jobs) -> Any:
        return await asyncio.gather(*(jobs.start("twice") for _ in range(6)))

    pids = run(story)
    assert all(pids.count(pid) <= 2 for pid in pids)


def test_what_a_job_ahead_logs_is_its_own() -> None:
    seen = []

    class Noted(logging.Handler):
        def emit(self, _: logging.LogRecord) -> None:
            seen.append(job_fields()["job_id"])

    async def story(jobs: Jobs) -> Any:
        return await asyncio.gather(*(jobs.start("about") for _ in range(5)))

    handler = Noted()
    computing.note.addHandler(handler)
    with contextlib.ExitStack() as stack:
        stack.callback(computing.note.removeHandler, handler)
        told = run(story)
    assert seen == [one["about"][0] for one in told]


def test_a_cancelled_job_gives_back_the_process_that_it_was_about_to_get() -> None:
    async def story(jobs: Jobs) -> Any:
        processes = jobs.processes

        async def reserve() -> None:
            async with processes.one(jobs):
                await asyncio.sleep(1000)

        reserving = asyncio.create_task(reserve())
        await asyncio.sleep(0)  # the process is reserved for it, and it does not know yet
        assert jobs.living[0].is_reserved
        reserving.cancel()
        await asyncio.wait([reserving])
        return await jobs.start("measure", text="abc")

    assert run(story)[0] == 3


def test_a_job_that_is_there_before_the_process_looks_is_announced_too() -> None:
    pairs = socket.socketpair(), socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    (ours, theirs), (jobs, their_jobs) = pairs
    wire, worker = _Wire(theirs), _Wire(ours)
    task = copy(computing.app.tasks["measure"])
    task.processes = Processes(max_jobs=1)
    hold = held("measure")
    hold.lease.args = {"text": "abc"}
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    runner = _Runner(wire, {"main": None, "main_path": None, "level": level})
    jobs.send(task_process.NUMBER.pack(1) + task_process.frame_of(hold, task, None, 1024))

    try:
        _run(_Jobs(their_jobs, wire), wire, runner, Surroundings())
    finally:
        root.handlers[:] = handlers

    theirs.close()
    frames = [worker.receive_frame() or b"" for _ in range(2)]
    assert [json.loads(frame.partition(b"\n")[0])[0] for frame in frames] == ["began", "ended"]
    for one in itertools.chain(*pairs):
        one.close()
