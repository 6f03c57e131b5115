"""Tasks that start processes by fork: a child is not the worker, and what happens to it is not the worker's affair."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import socket
import sys
import termios
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from psycopg.conninfo import make_conninfo

from faultline.core import forks as core_forks
from faultline.core.model import JobState
from faultline.worker.companion.client import Standby
from tests.waiting import free_port, until
from tests.worker.test_companion import companion_of, succeeded
from tests.worker.test_processes import PATIENCE, runs, said, worker
from tests.worker.working import results

if TYPE_CHECKING:
    from collections.abc import Iterator

    from faultline import Faultline
    from tests.driver import Driver


def signals_seen(pid: int) -> list[int]:
    """The sizes of the files by which the companion learns of signals: 0 as long as none came."""
    sizes = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            if "faultline-signals" in str(link.readlink()):
                sizes.append(link.stat().st_size)
    return sizes


def test_a_child_that_a_task_forks_and_terminates_dies_and_the_worker_is_not_asked_to_stop(dsn: str, queue: Driver) -> None:
    with worker(dsn) as process:
        job_id = queue.enqueue("fork_and_end", {"number": 20})
        until(lambda: succeeded(queue, job_id))

        assert queue.job(job_id).result == [-signal.SIGTERM] * 20
        assert signals_seen(process.pid) == [0]


def test_a_child_that_a_task_forks_is_interrupted_like_any_program(dsn: str, queue: Driver) -> None:
    with worker(dsn) as process:
        job_id = queue.enqueue("fork_and_interrupt")
        until(lambda: succeeded(queue, job_id))

        assert queue.job(job_id).result == 130
        assert signals_seen(process.pid) == [0]


def test_a_worker_whose_tasks_have_forked_still_stops_when_it_is_told_to(dsn: str, queue: Driver) -> None:
    with worker(dsn, "--grace", "0.1") as process:
        forked = queue.enqueue("fork_and_end", {"number": 1})
        until(lambda: succeeded(queue, forked))
        job_id = queue.enqueue("endless")
        until(lambda: runs(queue, job_id))

        os.kill(process.pid, signal.SIGTERM)

        assert process.wait(PATIENCE) == 0, said(process)
    assert (queue.state(job_id), queue.job(job_id).attempt) == (JobState.QUEUED, 0)


WAYS = {"return": 0, "exit": 0, "exit3": 3, "raise": 1}


@pytest.mark.parametrize("task", ["fork_and_come_back", "afork_and_come_back", "afork_in_a_branch"])
def test_a_child_that_comes_back_out_of_its_task_ends_instead_of_becoming_a_second_worker(
    dsn: str, queue: Driver, task: str
) -> None:
    with worker(dsn) as process:
        codes = {}
        for how in WAYS:
            job_id = queue.enqueue(task, {"how": how})
            until(lambda: succeeded(queue, job_id))  # noqa: B023 - called at once
            codes[how] = queue.job(job_id).result
        assert codes == WAYS
        assert "ValueError: in the child" in said(process)
        assert "loop_resumed" not in said(process)

        os.kill(process.pid, signal.SIGTERM)

        assert process.wait(PATIENCE) == 0, said(process)


@pytest.mark.parametrize("task", ["fork_and_write", "afork_and_write"])
def test_a_child_cannot_write_through_its_parents_job_and_is_told_so(dsn: str, queue: Driver, task: str) -> None:
    with worker(dsn):
        job_id = queue.enqueue(task)
        until(lambda: succeeded(queue, job_id))

    told = str(queue.job(job_id).result).splitlines()
    assert len(told) == 4
    for line in told:
        assert line.startswith(f"ConfigError: job {job_id} belongs to another process"), line


def links(pid: int) -> set[str]:
    """What a process has open."""
    found = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.add(str(link.readlink()))
    return found


@contextlib.contextmanager
def left_behind(queue: Driver) -> Iterator[int]:
    """A process that a task has forked, and that outlives the worker."""
    job_id = queue.enqueue("fork_and_leave")
    until(lambda: succeeded(queue, job_id))
    child = queue.job(job_id).result
    assert isinstance(child, int)
    try:
        yield child
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_killed_workers_sessions_and_ports_end_although_a_process_that_it_forked_lives_on(dsn: str, queue: Driver) -> None:
    port, sessions = free_port(), "select count(*) from pg_stat_activity where application_name = 'forks'"
    with (
        worker(make_conninfo(dsn, application_name="forks"), "--health-port", str(port)) as process,
        left_behind(queue) as child,
    ):
        until(lambda: queue.value(sessions) > 1)

        process.kill()

        until(lambda: queue.value(sessions) == 0)
        until(lambda: is_free(port))
        assert Path(f"/proc/{child}").exists()


def is_free(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
        return True
    return False


def test_a_process_that_a_task_forks_does_not_hold_the_companions_pipe(dsn: str, queue: Driver) -> None:
    with worker(dsn) as process:
        companion = until(lambda: companion_of(process.pid))
        pipe = str(Path(f"/proc/{companion}/fd/0").readlink())
        with left_behind(queue) as child:
            assert pipe in links(process.pid)
            assert pipe not in links(child)


def test_a_companion_ends_when_it_is_told_to_though_somebody_else_holds_its_pipe() -> None:
    standby = Standby(
        "", "w", capacity=10, grace_seconds=1.0, loop_timeout_seconds=60.0, owns_process=False, signals=None, health=None,
        memory=None, monotonic=time.monotonic, tasks={},
    )  # fmt: skip
    standby.start()
    process = standby._process  # noqa: SLF001
    assert process is not None
    assert process.stdin is not None
    other = os.dup(process.stdin.fileno())
    until(lambda: unread(other) == 0)  # it runs: a Python that still starts may take longer than `stop` waits

    standby.stop()
    os.close(other)

    assert process.returncode == 0  # it was not killed


def unread(pipe: int) -> int:
    """How many bytes its reader has not read yet."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def test_a_child_of_a_branch_runs_nothing_of_what_is_due_in_pythons_own_loop_either(app: Faultline) -> None:
    parent = os.getpid()

    def due() -> None:
        if os.getpid() != parent:
            os._exit(99)

    @app.task(max_attempts=1)
    async def forks() -> int:
        async def branch() -> int:
            asyncio.get_running_loop().call_soon(due)
            return os.fork()

        forked = asyncio.create_task(branch())
        forked.add_done_callback(lambda _: due())
        return os.waitstatus_to_exitcode((await asyncio.to_thread(os.waitpid, await forked, 0))[1])

    assert results(app, [forks.enqueue()]) == [0]
    assert not core_forks._loops  # noqa: SLF001 - without a worker, a loop is the program's own again
