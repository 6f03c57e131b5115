"""Flows: send a signal, fork a job, read a job with all below it, list what waits."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Body, Depends, Query, Request

from faultline import operate
from faultline.core.errors import JobNotFound
from faultline.store.reads import listing, suspended, views
from faultline.store.reads.flows import Flow
from faultline.web.api import cursors
from faultline.web.api.routes import CheckedRoute
from faultline.web.api.shapes import Fork, Forked, NewSignal, NewSignalByKey, SentSignal, WaitingFilter, WaitingPage
from faultline.web.api.visible_flow import flow_of
from faultline.web.auth.access import needs
from faultline.web.auth.caller import Caller
from faultline.web.server.problems import Problem
from faultline.web.server.service import service_of

router = APIRouter(tags=["flows"], route_class=CheckedRoute)

Operator = Annotated[Caller, Depends(needs("operate"))]
Reader = Annotated[Caller, Depends(needs("read"))]
#: Jobs with the same key, of different API keys, that an answer names.
_ALIKE_MAX = 10


@router.post("/jobs/{job_id:uuid}/signals", summary="Send a signal to a job")
async def signal(request: Request, job_id: UUID, body: NewSignal, caller: Operator) -> SentSignal:
    """Send a signal to a job: one that waits for it goes on at once, one that does not yet keeps it."""
    return await _send(request, caller, job_id, body)


@router.post("/signals", summary="Send a signal to the job with an idempotency key")
async def signal_by_key(request: Request, body: NewSignalByKey, caller: Operator) -> SentSignal:
    wanted = listing.Wanted(key=body.idempotency_key, only_queues=caller.only_queues)
    found = await service_of(request).read_for(caller).run(listing.jobs(wanted, page_jobs=_ALIKE_MAX))
    open_jobs = [job for job in found.jobs if not job.state.ended] or found.jobs
    if not open_jobs:
        raise JobNotFound(f"no job with the idempotency key {body.idempotency_key!r}; it was never enqueued, or was pruned")
    if len(open_jobs) > 1:
        raise Problem(
            409,
            "SeveralJobs",
            "Several jobs have this idempotency key, of different API keys.",
            next_step="Send it to one of `job_ids`.",
            job_ids=[str(job.id) for job in open_jobs],
        )
    return await _send(request, caller, open_jobs[0].id, body)


async def _send(request: Request, caller: Caller, job_id: UUID, body: NewSignal) -> SentSignal:
    doing = operate.signal(
        job_id,
        body.name,
        body.payload,
        key=body.key,
        for_call=body.for_call,
        by=caller.signed(),
        only_queues=caller.only_queues,
    )
    return SentSignal(job_id=job_id, created=await service_of(request).operate.run(doing))


@router.post("/jobs/{job_id:uuid}/fork", status_code=201, summary="Begin a new job with the history of another")
async def fork(request: Request, job_id: UUID, caller: Operator, body: Annotated[Fork | None, Body()] = None) -> Forked:
    """The new job does not run again what the other had called before `before`. The other is not changed."""
    asked = body or Fork(before=None, args=None, reason=None)
    doing = operate.fork(
        job_id, asked.before, asked.args, reason=asked.reason, by=caller.signed(), only_queues=caller.only_queues
    )
    return Forked(id=await service_of(request).operate.run(doing), forked_from=job_id)


@router.get("/jobs/{job_id:uuid}/flow", summary="A job with its calls, children, waits and signals")
async def one_flow(request: Request, job_id: UUID, caller: Reader) -> Flow:
    """A job with its calls, children, waits and signals. Of a large flow only a part: `is_cut`.

    Long results and payloads are cut to text of 4,000 characters.
    """
    read = service_of(request).read_for(caller)
    record = await read.run(views.job(job_id))
    if record is None or not caller.may_touch(record.queue):
        raise JobNotFound(
            f"no job {job_id}; it was never enqueued in this database, or it was pruned after its retention time"
        )
    return await flow_of(record, read, caller)


@router.get("/waiting", summary="List what suspended jobs wait for")
async def list_waiting(request: Request, wanted: Annotated[WaitingFilter, Query()], caller: Reader) -> WaitingPage:
    """What suspended jobs wait for: signals by name, longest first; all other waits by the age of their jobs."""
    order = suspended.order_of("signal" if wanted.name is not None else wanted.kind)
    behind = None if wanted.cursor is None else cursors.decode(wanted.cursor, order.name, order.types)
    page = await (
        service_of(request)
        .read_for(caller)
        .run(
            suspended.waiting(
                kind=wanted.kind,
                name=wanted.name,
                only_queues=caller.only_queues,
                page_rows=wanted.limit,
                behind=behind,
            )
        )
    )
    cursor = None if page.behind is None else cursors.encode(order.name, page.behind)
    return WaitingPage(waiting=page.waiting, next_cursor=cursor)
