"""Flows in real worker processes that are killed and stopped: every effect happens once, and no wait is lost."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from faultline import JobState
from faultline.core.model import Submission
from faultline.store import jsontext, verbs
from tests.flow.programs import CHILDREN, EFFECTS
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from tests.driver import Driver

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
PATIENCE = 90.0
#: The result of a story: its children, one, and what it received.
RESULT = sum(range(CHILDREN)) + 1 + 100
#: One kill at each stage: claimed, read, begun; between the commit and its answer; before and after everything that is sent.
POINTS = [
    "after_claim_committed", "after_history_committed", "before_execution", "before_commit_sent", "after_commit_committed",
    "before_spawn_sent", "after_spawn_committed", "before_suspend_sent", "after_suspend_committed", "after_execution",
    "before_resolve_sent", "after_resolve_committed", "after_record_committed", "after_collect_outcomes_committed",
    "after_receive_committed", "before_complete_sent", "after_complete_committed",
]  # fmt: skip


@contextlib.contextmanager
def worker(dsn: str, crash_at: str = "") -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "faultline", "worker", "tests.flow.programs:app"]
    # A file: a pipe that nobody reads would stop the worker.
    with tempfile.TemporaryFile("w+") as log:
        environ = {**os.environ, "FAULTLINE_DSN": dsn, "CRASH_AT": crash_at}
        process = subprocess.Popen(command, cwd=ROOT, env=environ, stderr=log, text=True, start_new_session=True)
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def enqueue(queue: Driver, task: str, **args: Any) -> UUID:
    return queue.run(verbs.enqueue_many([Submission(task, jsontext.encode(args, "args"), lease_seconds=3)]))[0].job_id


def stories(queue: Driver, number: int) -> dict[UUID, str]:
    """Half of them async and half of them blocking. What they wait for is there already."""
    queue.execute(EFFECTS)
    kinds = itertools.cycle(("story", "blocking_story"))
    flows = {enqueue(queue, task, flow=f"{n}"): f"{n}" for n, task in zip(range(number), kinds, strict=False)}
    for job_id in flows:
        queue.run(verbs.signal(job_id, "go", 100))
    return flows


def assert_told_once(queue: Driver, flows: dict[UUID, str]) -> None:
    assert [queue.job(job_id).result for job_id in flows] == [RESULT] * len(flows)
    once = ["begin", "end", *(f"part {n}" for n in range(CHILDREN))]
    told = queue.execute("select flow, what from effects order by 1, 2")
    assert told == sorted((flow, what) for flow in flows.values() for what in once)
    assert queue.value("select count(*) from faultline.ledger") == len(flows) * (1 + CHILDREN)
    assert queue.broken_invariants() == []


def all_ended(queue: Driver) -> bool:
    return not queue.value("select count(*) from faultline.open_jobs where state in ('queued', 'running')")


@pytest.mark.parametrize("point", POINTS)
def test_a_worker_that_is_killed_at_any_stage_of_a_flow_loses_and_doubles_nothing(
    dsn: str, queue: Driver, point: str
) -> None:
    flows = stories(queue, 2)
    with worker(dsn, crash_at=point) as killed:
        assert killed.wait(PATIENCE) == -signal.SIGKILL

    with worker(dsn):
        until(lambda: all_ended(queue), PATIENCE)

    assert_told_once(queue, flows)


def test_workers_that_are_killed_again_and_again_lose_and_double_nothing(dsn: str, queue: Driver) -> None:
    flows = stories(queue, 12)
    for _ in range(4):
        with worker(dsn) as killed:
            ended = queue.value("select count(*) from faultline.ledger")
            until(lambda: all_ended(queue) or queue.value("select count(*) from faultline.ledger") >= ended + 6)  # noqa: B023
            killed.kill()

    with worker(dsn):
        until(lambda: all_ended(queue), PATIENCE)

    assert_told_once(queue, flows)


def test_a_worker_that_is_stopped_leaves_those_who_wait_waiting(dsn: str, queue: Driver) -> None:
    job_id = enqueue(queue, "waiting")
    waits = "select count(*) from faultline.open_jobs where suspended"
    with worker(dsn) as stopped:
        until(lambda: queue.value(waits) == 1)
        stopped.send_signal(signal.SIGTERM)
        assert stopped.wait(PATIENCE) == 0
    assert queue.value(waits) == 1
    assert queue.value("select count(*) from faultline.journal") == 0

    queue.run(verbs.signal(job_id, "go", 7))
    with worker(dsn):
        until(lambda: queue.state(job_id) is JobState.SUCCEEDED)

    assert queue.job(job_id).result == 7
    assert queue.job(job_id).attempt == 1


def test_finding_09_a_signal_whose_sender_dies_is_acted_upon_within_seconds(dsn: str, queue: Driver) -> None:
    """Nobody resolves it but the workers, by the clock: the sender's notification is switched off."""
    job_id = enqueue(queue, "waiting")
    with worker(dsn):
        until(lambda: queue.value("select count(*) from faultline.open_jobs where suspended") == 1)
        queue.execute("set faultline.notify = off")
        sent = time.monotonic()
        queue.run(verbs.signal(job_id, "go", 7))
        until(lambda: queue.state(job_id) is JobState.SUCCEEDED)

    assert time.monotonic() - sent < PATIENCE / 3
