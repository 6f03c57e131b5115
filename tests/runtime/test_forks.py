"""Tasks that start processes by fork: a child is not the worker, and what happens to it is not the worker's affair."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from faultline.core.model import JobState
from tests.runtime.test_companion import succeeded
from tests.runtime.test_processes import PATIENCE, runs, said, until, worker

if TYPE_CHECKING:
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
