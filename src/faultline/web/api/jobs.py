"""Read jobs: one job in full, lists page by page, failed jobs in groups."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Request

from faultline.core.errors import JobNotFound
from faultline.core.model import JobState
from faultline.drawing.epochs import epochs
from faultline.store.reads import failures, listing, views
from faultline.web import cursors
from faultline.web.access import Caller, needs
from faultline.web.service import service_of
from faultline.web.shapes import FailureFilter, FailureGroup, Failures, Job, JobFilter, JobPage, JobSummary

router = APIRouter(tags=["jobs"])

Reader = Annotated[Caller, Depends(needs("read"))]


@router.get("/jobs", summary="List jobs")
async def list_jobs(request: Request, wanted: Annotated[JobFilter, Query()], caller: Reader) -> JobPage:
    """Newest first; failed and cancelled jobs by their end, the queued jobs of one queue in the order they will run."""
    asked = listing.Wanted(
        state=wanted.state,
        queue=wanted.queue,
        task=wanted.task,
        created_after=wanted.created_after,
        created_before=wanted.created_before,
        key=wanted.key,
        only_queues=caller.only_queues,
    )
    order = listing.order_of(asked)
    behind = None if wanted.cursor is None else cursors.decode(wanted.cursor, order.name, order.types)
    page = await service_of(request).read_for(caller).run(listing.jobs(asked, page_jobs=wanted.limit, behind=behind))
    return JobPage(
        jobs=[JobSummary.model_validate(asdict(job)) for job in page.jobs],
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
        raise JobNotFound(f"no job {job_id}: it was never committed in this database, or it was pruned")
    facts = asdict(record)
    return Job.model_validate(
        facts
        | {
            "epochs": [asdict(epoch) for epoch in epochs(record, journal)],
            "journal": [asdict(entry) for entry in journal],
            "steps": [asdict(step) for step in steps],
            "ledger": facts if record.state is JobState.SUCCEEDED else None,
        }
    )


@router.get("/failures", summary="Failed jobs, in groups")
async def failed_groups(request: Request, wanted: Annotated[FailureFilter, Query()], caller: Reader) -> Failures:
    which = failures.Failed(queue=wanted.queue, task=wanted.task, only_queues=caller.only_queues)
    found = await service_of(request).read_for(caller).run(failures.groups(which))
    return Failures(groups=[FailureGroup.model_validate(asdict(group)) for group in found.groups], at_least=found.at_least)
