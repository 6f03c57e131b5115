"""Why a queued job does not start, as far as its queue and its workers go: for `faultline job` and the page of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from faultline.core.model import JobState
from faultline.explain.formatting import span

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from faultline.core.model import JobSummary
    from faultline.store.reads.groups import Permit
    from faultline.store.reads.overview import WorkerLine

#: A heartbeat comes every second. A busy machine may be late, and its workers are not dead.
_SILENT_SECONDS = 10.0


def serving(queue: str, workers: Iterable[WorkerLine]) -> list[WorkerLine]:
    """The living workers that claim from this queue."""
    return [worker for worker in workers if worker.age_seconds <= _SILENT_SECONDS and queue in worker.queues]


def awaited(job: JobSummary, permit: Permit | None, workers: Sequence[WorkerLine], now: datetime) -> str:
    """What a queued job waits for, beside limits: `a worker: none is alive`. Empty: for nothing of this kind.

    A job whose task no worker knows is claimed and released, so that it is due later again and again: that is said at once.
    All else is said when the job is due.
    """
    if job.state is not JobState.QUEUED or job.waits_at(now):
        return ""
    found = serving(job.queue, workers)
    due = job.next_run_at is None or job.next_run_at <= now
    waits = [_resumed(permit, permit.paused_at, now)] if due and permit is not None and permit.paused_at is not None else []
    if not found and due:
        waits.append(_worker(job.queue, workers))
    elif found and all(worker.tasks is not None and job.task not in worker.tasks for worker in found):
        waits.append(f"a worker that knows the task {job.task}: {_workers(len(found), 'serve')} its queue, none knows it")
    elif due and not waits and (permit is None or not permit.limited):
        leases = sum(worker.leases for worker in found)
        held = f"with {leases:,} {'job' if leases == 1 else 'jobs'} in hand"
        waits.append(f"a free slot: {_workers(len(found), 'serve')} its queue, {held}")
    return " and ".join(waits)


def _resumed(permit: Permit, paused_at: datetime, now: datetime) -> str:
    since = span(max(0.0, (now - paused_at).total_seconds()))
    why = f": {' '.join(permit.paused_reason.split())}" if permit.paused_reason else ""
    return f"its queue to be resumed (paused {since} ago{f' by {permit.paused_by}' if permit.paused_by else ''}{why})"


def _worker(queue: str, workers: Iterable[WorkerLine]) -> str:
    alive = sum(worker.age_seconds <= _SILENT_SECONDS for worker in workers)
    if not alive:
        return "a worker: none is alive"
    return f"a worker of its queue: {_workers(alive, 'live')}, none serves {queue}"


def _workers(number: int, do: str) -> str:
    return f"{number:,} workers {do}" if number > 1 else f"1 worker {do}s"
