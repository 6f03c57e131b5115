"""Real worker processes, real signals, a real server."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from faultline.core.model import JobState, Submission
from faultline.store import verbs
from tests.cli.commands import faultline
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from tests.driver import Driver

ROOT = Path(__file__).parents[2]
PATIENCE = 90.0


@contextlib.contextmanager
def worker(dsn: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "faultline", "worker", "tests.worker.jobs:app", *words]
    # A file: a pipe that nobody reads would stop the worker.
    log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed below
    environ = {**os.environ, "FAULTLINE_DSN": dsn}
    process = subprocess.Popen(command, cwd=ROOT, env=environ, stderr=log, text=True, start_new_session=True)
    process.stderr = log
    try:
        yield process
    finally:
        for pid in [*children_of(process.pid), process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        log.close()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    process.stderr.seek(0)
    return process.stderr.read()


def children_of(pid: int) -> list[int]:
    with contextlib.suppress(FileNotFoundError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def runs(queue: Driver, job_id: UUID) -> bool:
    return queue.state(job_id) is JobState.RUNNING


def workers(queue: Driver) -> int:
    return int(queue.value("select count(*) from faultline.workers"))


def test_what_the_environment_tells_a_parent_is_not_for_its_children(
    dsn: str, queue: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    monkeypatch.setenv("FAULTLINE_WORKER_PROCESSES", "2")
    monkeypatch.setenv("FAULTLINE_WORKER_HEALTH_PORT", str(port))

    with worker(dsn) as parent:
        until(lambda: workers(queue) == 2)

        children = children_of(parent.pid)
        below = [Path(f"/proc/{pid}/cmdline").read_text() for child in children for pid in children_of(child)]
        assert len(children) == 2
        assert not [command for command in below if "tests.worker.jobs:app" in command]


def test_a_frozen_worker_keeps_a_job_that_nobody_else_has_taken(dsn: str, queue: Driver) -> None:
    job_id = queue.enqueue("nap", {"seconds": 3}, lease_seconds=2)
    with worker(dsn) as process:
        # Granted is not enough: what was not begun before the stop is given back after it.
        until(lambda: "the nap has begun" in said(process))
        process.send_signal(signal.SIGSTOP)
        until(lambda: queue.value("select lease_expires_at < clock_timestamp() - interval '1 s' from faultline.open_jobs"))
        process.send_signal(signal.SIGCONT)

        until(lambda: queue.state(job_id) is JobState.SUCCEEDED)
        log = said(process)

    assert queue.journal(job_id) == [], log
    assert queue.job(job_id).fencing_token == 1


def test_sigterm_ends_an_idle_worker_at_once_and_cleanly(dsn: str, queue: Driver) -> None:
    with worker(dsn) as process:
        until(lambda: workers(queue) == 1)
        asked = time.monotonic()

        process.send_signal(signal.SIGTERM)

        assert process.wait(PATIENCE) == 0
        assert time.monotonic() - asked < 20  # it has 30 seconds for jobs
    assert workers(queue) == 0


def test_a_second_signal_ends_at_once(dsn: str, queue: Driver) -> None:
    job_id = queue.enqueue("endless")
    with worker(dsn, "--grace", "600") as process:
        until(lambda: runs(queue, job_id))

        process.send_signal(signal.SIGTERM)
        until(lambda: "worker_stopping" in said(process))
        process.send_signal(signal.SIGTERM)

        assert process.wait(PATIENCE) == 128 + signal.SIGTERM


@pytest.mark.long
def test_a_parent_starts_a_killed_child_again_and_takes_all_along_when_it_goes(dsn: str, queue: Driver) -> None:
    with worker(dsn, "--processes", "2") as parent:
        until(lambda: workers(queue) == 2)
        first = children_of(parent.pid)
        os.kill(first[0], signal.SIGKILL)
        until(lambda: len(now := set(children_of(parent.pid))) == 2 and now != set(first))
        queue.enqueue("note", {"n": 1})
        until(lambda: queue.value("select count(*) from faultline.ledger") == 1)
        children = children_of(parent.pid)

        parent.send_signal(signal.SIGTERM)

        assert parent.wait(PATIENCE) == 0
    assert not [
        pid for pid in children if Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes()
    ]


def test_children_of_a_killed_parent_finish_and_stop(dsn: str, queue: Driver) -> None:
    with worker(dsn, "--processes", "2", "--grace", "1") as parent:
        until(lambda: workers(queue) == 2)
        job_id = queue.enqueue("endless")
        until(lambda: runs(queue, job_id))

        parent.kill()

        until(lambda: workers(queue) == 0)
    assert (queue.state(job_id), queue.job(job_id).attempt) == (JobState.QUEUED, 0)


@pytest.mark.long
def test_a_task_that_ignores_being_cancelled_does_not_keep_the_process(dsn: str, queue: Driver) -> None:
    job_id = queue.enqueue("stubborn")
    with worker(dsn, "--grace", "0.1") as process:
        until(lambda: runs(queue, job_id))
        asked = time.monotonic()

        process.send_signal(signal.SIGTERM)

        assert process.wait(PATIENCE) == 0
        assert time.monotonic() - asked < 30
        assert "attempt_left_behind" in said(process)
    assert (queue.state(job_id), queue.job(job_id).attempt) == (JobState.QUEUED, 0)
    assert workers(queue) == 0


def test_a_worker_with_too_many_stuck_threads_asks_to_be_replaced(dsn: str, queue: Driver) -> None:
    jobs = [queue.enqueue("stuck", max_attempts=1) for _ in range(3)]
    with worker(dsn, "--abandoned-threads-max", "2") as process:
        assert process.wait(PATIENCE) == 75
        assert "threads_exhausted" in said(process)
    assert {queue.state(job_id) for job_id in jobs} == {JobState.FAILED}


@pytest.mark.long
@pytest.mark.parametrize("task", ["poison", "sweep"])
def test_a_poison_job_ends_and_the_innocents_beside_it_succeed(dsn: str, queue: Driver, task: str) -> None:
    poison = queue.enqueue(task, priority=-1, lease_seconds=3, max_attempts=2)
    jobs = [Submission("innocent", f'{{"n": {n}}}', lease_seconds=3, max_attempts=2) for n in range(99)]
    innocents = [place.job_id for place in queue.run(verbs.enqueue_many(jobs))]

    with worker(dsn, "--processes", "2", "--queue", "default=100"):
        until(lambda: queue.state(poison) is JobState.FAILED)
        until(lambda: queue.value("select count(*) from faultline.ledger") == 99)

    assert {queue.state(job_id) for job_id in innocents} == {JobState.SUCCEEDED}
    assert "worker died or lost its lease" in (queue.job(poison).last_error or "")


@pytest.mark.parametrize("what", ["everything", "main", "others"])
def test_a_job_that_cancels_tasks_of_the_worker_has_killed_it(dsn: str, queue: Driver, what: str) -> None:
    """Nothing is given back with its attempt: such a job would be run for ever, and take one worker down after the other."""
    with worker(dsn) as process:
        beside = queue.enqueue("endless", max_attempts=2)
        until(lambda: runs(queue, beside))
        guilty = queue.enqueue("sweep", {"what": what}, max_attempts=2)

        assert process.wait(PATIENCE) == 1
        assert said(process).count('"worker_swept_away"') == 1
        assert "Traceback" not in said(process)
    assert [(queue.state(job_id), queue.job(job_id).attempt) for job_id in (guilty, beside)] == [(JobState.RUNNING, 1)] * 2


@pytest.mark.parametrize("how", ["exit", "interrupt", "stop"])
def test_a_branch_that_ends_the_event_loop_fails_its_own_job_and_the_worker_goes_on(
    dsn: str, queue: Driver, how: str
) -> None:
    with worker(dsn) as process:
        beside = queue.enqueue("endless", max_attempts=1)
        until(lambda: runs(queue, beside))
        guilty = queue.enqueue("end_loop", {"how": how}, max_attempts=2)
        until(lambda: queue.state(guilty) is JobState.FAILED)
        after = queue.enqueue("note", {"n": 1})
        until(lambda: queue.state(after) is JobState.SUCCEEDED)
        log = said(process)

        assert process.poll() is None
        assert (runs(queue, beside), queue.job(beside).fencing_token) == (True, 1)
    assert log.count('"loop_resumed"') == 2
    assert "tests/worker/jobs.py" in log or how == "stop"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["no.such.module:app"], "no module no"),
        (["tests.worker.jobs:nothing"], "has no Faultline application named nothing"),
        (["tests.worker.jobs:app", "--queue", "mail=many"], "write NAME or NAME=CONCURRENCY"),
    ],
)
def test_a_worker_that_cannot_start_says_why(dsn: str, words: list[str], why: str) -> None:
    ran = faultline("worker", *words, FAULTLINE_DSN=dsn)

    assert ran.returncode == 2
    assert why in ran.stderr
    assert "Traceback" not in ran.stderr
