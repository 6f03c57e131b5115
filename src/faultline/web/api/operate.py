"""Cancel, retry, undo, pause, resume. Whether the caller may do it is checked under the row's lock."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Body, Depends, Path, Request

from faultline import operate
from faultline.core.states import JobState
from faultline.store.reads import cancellable, failures
from faultline.web.api import cursors
from faultline.web.api.bulk_shapes import CancelJobs, ChangedJobs, RetryFailed
from faultline.web.api.routes import CheckedRoute
from faultline.web.api.shapes import Changed, Paused, QueueName, Resumed, Why, WhyCancelled
from faultline.web.auth.access import needs
from faultline.web.auth.caller import Caller
from faultline.web.server.problems import Problem
from faultline.web.server.service import service_of

router = APIRouter(route_class=CheckedRoute)

Operator = Annotated[Caller, Depends(needs("operate"))]
Because = Annotated[Why | None, Body()]


@router.post("/jobs/{job_id:uuid}/cancel", tags=["jobs"], summary="Cancel a job")
async def cancel(
    request: Request, job_id: UUID, caller: Operator, body: Annotated[WhyCancelled | None, Body()] = None
) -> Changed:
    """The journal records the reason and the key."""
    undo = body is not None and body.undo
    doing = operate.cancel(job_id, reason=_why(body), undo=undo, by=caller.signed(), only_queues=caller.only_queues)
    return Changed(id=job_id, state=await service_of(request).operate.run(doing))


@router.post("/jobs/{job_id:uuid}/retry", tags=["jobs"], summary="Retry a failed or cancelled job")
async def retry(request: Request, job_id: UUID, caller: Operator, body: Because = None) -> Changed:
    doing = operate.retry(job_id, reason=_why(body), by=caller.signed(), only_queues=caller.only_queues)
    return Changed(id=job_id, state=await service_of(request).operate.run(doing))


@router.post("/jobs/{job_id:uuid}/undo", tags=["jobs"], summary="Undo the sagas of a failed or cancelled job")
async def undo(request: Request, job_id: UUID, caller: Operator, body: Because = None) -> Changed:
    """The job is queued for that, and ends again as it had ended."""
    doing = operate.undo(job_id, reason=_why(body), by=caller.signed(), only_queues=caller.only_queues)
    return Changed(id=job_id, state=await service_of(request).operate.run(doing))


@router.post("/jobs/cancel", tags=["jobs"], summary="Cancel queued and running jobs, or only count them")
async def cancel_jobs(request: Request, body: CancelJobs, caller: Operator) -> ChangedJobs:
    service = service_of(request)
    which = cancellable.UnendedFilter(
        queue=body.queue,
        task=body.task,
        group=body.group,
        state=None if body.state is None else JobState(body.state),
        only_queues=caller.only_queues,
        before=None if body.cursor is None else cursors.decode(body.cursor, "unended", cancellable.CURSOR_TYPES)[0],
    )
    if body.preview:
        count = await service.read_for(caller).run(cancellable.count(which))
        more, until = count.behind is not None, count.until or count.behind
        return ChangedJobs(preview=True, jobs=count.jobs, at_least=more, next_cursor=_unended_cursor(until))
    work = operate.CancelJobs(which, reason=body.reason, by=caller.signed(), jobs_max=body.max_jobs)
    while (batch := work.batch()) is not None:
        work.took(await service.operate.run(batch))
    more = work.behind is not None
    return ChangedJobs(preview=False, jobs=work.jobs, at_least=more, next_cursor=_unended_cursor(work.behind))


def _unended_cursor(before: UUID | None) -> str | None:
    return None if before is None else cursors.encode("unended", (before,))


@router.post("/jobs/retry", tags=["jobs"], summary="Retry failed jobs, or only count them")
async def retry_failed(request: Request, body: RetryFailed, caller: Operator) -> ChangedJobs:
    service = service_of(request)
    which = failures.FailedFilter(
        queue=body.queue,
        task=body.task,
        error_prefix=body.error_prefix,
        error_kind=body.error_kind,
        only_queues=caller.only_queues,
        before=None if body.cursor is None else cursors.decode(body.cursor, "failed", failures.CURSOR_TYPES),
    )
    if body.preview:
        count = await service.read_for(caller).run(failures.count(which))
        return ChangedJobs(preview=True, jobs=count.jobs, at_least=count.at_least, next_cursor=_cursor(count.until))
    work = operate.RetryFailed(which, reason=body.reason, by=caller.signed(), jobs_max=body.max_jobs)
    while (batch := work.batch()) is not None:
        work.took(await service.operate.run(batch))
    return ChangedJobs(
        preview=False,
        jobs=work.jobs,
        at_least=work.behind is not None,
        refused=work.refused,
        next_cursor=_cursor(work.behind),
    )


def _cursor(cursor: failures.Cursor | None) -> str | None:
    return None if cursor is None else cursors.encode("failed", cursor)


@router.post("/queues/{queue_name:path}/pause", tags=["queues"], summary="Pause a queue: workers stop claiming from it")
async def pause(
    request: Request,
    queue_name: Annotated[QueueName, Path()],
    caller: Operator,
    body: Because = None,
) -> Paused:
    _check_queue(caller, queue_name)
    doing = operate.pause(queue_name, reason=_why(body), by=caller.signed())
    since = await service_of(request).operate.run(doing)
    return Paused(queue=queue_name, paused_at=since)


@router.post("/queues/{queue_name:path}/resume", tags=["queues"], summary="Resume a queue")
async def resume(
    request: Request, queue_name: Annotated[QueueName, Path()], caller: Operator, body: Because = None
) -> Resumed:
    _check_queue(caller, queue_name)
    doing = operate.resume(queue_name, reason=_why(body), by=caller.signed())
    was_paused = await service_of(request).operate.run(doing)
    return Resumed(queue=queue_name, was_paused=was_paused)


def _why(body: Why | None) -> str | None:
    return None if body is None else body.reason


def _check_queue(caller: Caller, queue_name: str) -> None:
    if not caller.may_touch(queue_name):
        raise Problem(404, "QueueNotFound", "No such queue.", next_step="See the list of queues.")
