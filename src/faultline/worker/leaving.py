"""What a stopping worker logs about its jobs: each that it cancels, and each that it could not release."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from faultline.core import events
from faultline.worker.exits import end

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from faultline.worker.hold import Hold


def log_stopped(holds: Iterable[Hold], now: float) -> None:
    """The grace time is over: these attempts are cancelled and their jobs released."""
    for hold in holds:
        lease, ran = hold.lease, 0.0 if hold.began_at is None else now - hold.began_at
        events.emit("attempt_stopped", job_id=lease.job_id, task=lease.task, attempt=lease.attempt, seconds=round(ran, 1))


def log_left(worker_id: str, holds: Sequence[Hold]) -> None:
    """The endings or releases of these jobs could not be written. Their leases expire."""
    events.emit("worker_gave_up", worker=worker_id, jobs=len(holds), reason="the database did not answer")
    for hold in holds:
        lease = hold.lease
        attempt, attempts_max = lease.attempt, lease.max_attempts
        events.emit("ending_not_written", job_id=lease.job_id, task=lease.task, attempt=attempt, max_attempts=attempts_max)


def crash_swept_away(worker_id: str) -> NoReturn:
    """Release nothing: a job that ends its workers and keeps its attempts would run forever. It is reaped like any job that
    kills its worker, and so it is found (see `Company`).
    """
    events.emit(
        "worker_swept_away",
        worker=worker_id,
        reason="a task cancelled the worker's own asyncio tasks",
        action="ending as after a crash; a task may cancel only tasks that it started, not asyncio.all_tasks()",
    )
    end(1)
