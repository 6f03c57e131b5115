"""Read jobs: one job in full, lists page by page, failed jobs in groups."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Request

from faultline.core.errors import JobNotFound
from faultline.explain.epochs import epochs
from faultline.store.reads import failures, listing, views
from faultline.web.api import cursors
from faultline.web.api.shapes import FailureFilter, Failures, Job, JobFilter, JobPage, LedgerEntry
from faultline.web.auth.access import needs
from faultline.web.auth.caller import Caller
from faultline.web.server.service import service_of

router = APIRouter(tags=["jobs"])

Reader = Annotated[Caller, Depends(needs("read"))]


@router.get("/jobs", summary="List jobs")
async def list_jobs(request: Request, wanted: Annotated[JobFilter, Query()], caller: Reader) -> JobPage:
    """Newest first; failed and cancelled jobs by their end, the queued jobs of one queue by priority and time."""
    asked = listing.Wanted(
        state=wanted.state,
        queue=wanted.queue,
        task=wanted.task,
        created_after=wanted.created_after,
        created_before=wanted.created_before,
        key=wanted.key,
        group=wanted.group,
        only_queues=caller.only_queues,
    )
    order = listing.order_of(asked)
    behind = None if wanted.cursor is None else cursors.decode(wanted.cursor, order.name, order.types)
    page = await service_of(request).read_for(caller).run(listing.jobs(asked, page_jobs=wanted.limit, behind=behind))
    return JobPage(
        jobs=page.jobs,
        next_cursor=None if page.behind is None else cursors.encode(order.name, page.behind),
        stopped_early=page.stopped_early,
    )


@router.get("/jobs/{job_id:uuid}", summary="Everything about one job")
async def one_job(request: Request, job_id: UUID, caller: Reader) -> Job:
    statements: list[Any] = [
        views.job(job_id),
        views.journal(job_id, entries_max=1000),
        views.steps(job_id),
    ]
    record, journal, steps = await service_of(request).read_for(caller).run_all(statements)
    if record is None or not caller.may_touch(record.queue):
        raise JobNotFound(
            f"no job {job_id}; it was never enqueued in this database, or it was pruned after its retention time"
        )
    return Job(
        **{field.name: getattr(record, field.name) for field in fields(record)},
        epochs=epochs(record, journal),
        journal=journal,
        steps=steps,
        ledger=LedgerEntry.of(record),
    )


@router.get("/failures", summary="Failed jobs, in groups")
async def failed_groups(request: Request, wanted: Annotated[FailureFilter, Query()], caller: Reader) -> Failures:
    which = failures.FailedFilter(queue=wanted.queue, task=wanted.task, only_queues=caller.only_queues)
    found = await service_of(request).read_for(caller).run(failures.groups(which))
    return Failures(groups=found.groups, at_least=found.at_least)
