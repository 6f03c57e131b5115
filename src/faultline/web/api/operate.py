"""Change what is under way: cancel, retry, pause, resume. Whose job it is, is judged under the row's lock."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Body, Depends, Path, Request

from faultline.core import events
from faultline.store import failures, queue
from faultline.web import cursors
from faultline.web.access import Caller, needs
from faultline.web.problems import Problem
from faultline.web.routes import CheckedRoute
from faultline.web.service import Service, service_of
from faultline.web.shapes import (
    CancelJob,
    Changed,
    Paused,
    PauseQueue,
    QueueName,
    Resumed,
    RetriedJobs,
    RetryFailed,
)

router = APIRouter(route_class=CheckedRoute)

Operator = Annotated[Caller, Depends(needs("operate"))]
_BATCH = 1000


@router.post("/jobs/{job_id:uuid}/cancel", tags=["jobs"], summary="Stop a job for good")
async def cancel(
    request: Request, job_id: UUID, caller: Operator, body: Annotated[CancelJob | None, Body()] = None
) -> Changed:
    reason = None if body is None else body.reason
    state = await service_of(request).operate.run(queue.cancel(job_id, reason, only_queues=caller.only_queues))
    events.emit("job_cancelled_by_request", job_id=job_id, caller=caller.name)
    return Changed(id=job_id, state=state)


@router.post("/jobs/{job_id:uuid}/retry", tags=["jobs"], summary="Give a job that ended badly another chance")
async def retry(request: Request, job_id: UUID, caller: Operator) -> Changed:
    state = await service_of(request).operate.run(queue.retry(job_id, only_queues=caller.only_queues))
    events.emit("job_retried_by_request", job_id=job_id, caller=caller.name)
    return Changed(id=job_id, state=state)


@router.post("/jobs/retry", tags=["jobs"], summary="Retry failed jobs together, or count them first")
async def retry_failed(request: Request, body: RetryFailed, caller: Operator) -> RetriedJobs:
    service = service_of(request)
    which = failures.Failed(
        queue=body.queue,
        task=body.task,
        error_prefix=body.error_prefix,
        error_kind=body.error_kind,
        only_queues=caller.only_queues,
        before=None if body.cursor is None else cursors.decode(body.cursor, "failed", failures.PLACE_TYPES),
    )
    if body.preview:
        count = await service.read_for(caller).run(failures.count(which))
        return RetriedJobs(preview=True, jobs=count.jobs, at_least=count.at_least, next_cursor=_cursor(count.until))
    jobs, behind = await _retry_in_batches(service, which, body.max_jobs)
    events.emit("jobs_retried_by_request", jobs=jobs, caller=caller.name)
    return RetriedJobs(preview=False, jobs=jobs, at_least=behind is not None, next_cursor=_cursor(behind))


def _cursor(place: failures.Place | None) -> str | None:
    return None if place is None else cursors.encode("failed", place)


async def _retry_in_batches(service: Service, which: failures.Failed, max_jobs: int) -> tuple[int, failures.Place | None]:
    """How many were retried, and where to go on. Each batch is a transaction of its own."""
    jobs, behind = 0, None
    # Jobs that fail again meanwhile stand before the first place, and are not met twice.
    for _ in range(2 * max_jobs // _BATCH + 2):
        done = await service.operate.run(failures.retry(which, max_jobs=min(_BATCH, max_jobs - jobs)))
        jobs, behind = jobs + done.jobs, done.behind
        if behind is None or jobs >= max_jobs:
            break
        which = which.behind(behind)
    return jobs, behind


@router.post("/queues/{queue_name:path}/pause", tags=["queues"], summary="Grant no more jobs of a queue")
async def pause(
    request: Request,
    queue_name: Annotated[QueueName, Path()],
    caller: Operator,
    body: Annotated[PauseQueue | None, Body()] = None,
) -> Paused:
    _check_queue(caller, queue_name)
    reason = None if body is None else body.reason
    since = await service_of(request).operate.run(queue.pause(queue_name, reason))
    events.emit("queue_paused_by_request", queue=queue_name, caller=caller.name)
    return Paused(queue=queue_name, paused_at=since)


@router.post("/queues/{queue_name:path}/resume", tags=["queues"], summary="Grant jobs of a queue again")
async def resume(request: Request, queue_name: Annotated[QueueName, Path()], caller: Operator) -> Resumed:
    _check_queue(caller, queue_name)
    was_paused = await service_of(request).operate.run(queue.resume(queue_name))
    events.emit("queue_resumed_by_request", queue=queue_name, caller=caller.name)
    return Resumed(queue=queue_name, was_paused=was_paused)


def _check_queue(caller: Caller, queue_name: str) -> None:
    if not caller.may_touch(queue_name):
        raise Problem(404, "QueueNotFound", "There is no such queue.", next_step="Look at the list of queues.")
