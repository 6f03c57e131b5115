"""A job that blocks its worker's event loop is found, and the jobs that ran beside it finish."""

from __future__ import annotations

from typing import TYPE_CHECKING

from faultline.core.model import JobState
from tests.waiting import until
from tests.worker.test_processes import said, worker
from tests.worker.working import PATIENCE

if TYPE_CHECKING:
    from tests.driver import Driver


def test_jobs_beside_one_that_blocks_the_loop_finish_and_that_one_fails(dsn: str, queue: Driver) -> None:
    beside = [queue.enqueue("nap", {"seconds": 1}) for _ in range(4)]
    blocker = queue.enqueue("block_always", {}, max_attempts=2)
    beside += [queue.enqueue("nap", {"seconds": 1}) for _ in range(5)]
    rounds, log = 0, ""
    while queue.state(blocker) is not JobState.FAILED:
        rounds += 1
        with worker(dsn, "--queue", "default=20", "--loop-timeout", "3") as process:
            process.wait(timeout=PATIENCE)
            until(lambda: queue.state(blocker) is not JobState.RUNNING)
            log = said(process)

    assert [queue.state(job_id) for job_id in beside] == [JobState.SUCCEEDED] * len(beside)
    assert rounds == 2, log
    assert "blocked the event loop of its worker for" in str(queue.job(blocker).last_error)
    assert [queue.job(job_id).attempt for job_id in beside] == [1] * len(beside)
