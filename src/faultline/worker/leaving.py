"""What a worker that ends says of the jobs in its hands: each that it stops, and each that it could not give back."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from faultline.core import events
from faultline.worker.exits import end

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from faultline.worker.hold import Hold


def tell_stopped(holds: Iterable[Hold], now: float) -> None:
    """The grace time is over. These attempts are cancelled, and their jobs given back."""
    for hold in holds:
        lease, ran = hold.lease, 0.0 if hold.began_at is None else now - hold.began_at
        events.emit("attempt_stopped", job_id=lease.job_id, task=lease.task, attempt=lease.attempt, seconds=round(ran, 1))


def tell_left(worker_id: str, holds: Sequence[Hold]) -> None:
    """How these jobs ended could not be written, nor that they are given back. Their leases run out."""
    events.emit("worker_gave_up", worker=worker_id, jobs=len(holds), reason="the database did not answer")
    for hold in holds:
        lease = hold.lease
        attempt, attempts_max = lease.attempt, lease.max_attempts
        events.emit("ending_not_written", job_id=lease.job_id, task=lease.task, attempt=attempt, max_attempts=attempts_max)


def crash_swept_away(worker_id: str) -> NoReturn:
    """Nothing is given back: a job that ends its workers and keeps its attempt would be run forever. Reaped like any job
    that kills its worker, it has less and less company and is found out.
    """
    events.emit(
        "worker_swept_away",
        worker=worker_id,
        reason="a task cancelled the worker's own asyncio tasks",
        action="ending as after a crash; a task may cancel only tasks that it started, not asyncio.all_tasks()",
    )
    end(1)
