"""Cancelling all jobs that match a filter: first a count, then all of them at once."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Depends, Request

from faultline import operate
from faultline.core.model import JobState
from faultline.store.reads import cancellable
from faultline.web.api import cursors
from faultline.web.auth.access import needs
from faultline.web.auth.caller import Caller
from faultline.web.pages.jobs import Filters
from faultline.web.pages.page_frame import HERE, go, show
from faultline.web.server.forms import form_of
from faultline.web.server.problems import Problem
from faultline.web.server.service import service_of

if TYPE_CHECKING:
    from fastapi.responses import HTMLResponse, RedirectResponse

    from faultline.web.auth.connection_share import Share

router = APIRouter()
Operator = Annotated[Caller, Depends(needs("operate"))]
#: More are cancelled by further requests.
_JOBS_MAX = 50_000
#: How many windows of jobs are read for the count.
_WINDOWS_MAX = 10


@router.get("/jobs/cancel")
async def preview(request: Request, caller: Operator) -> HTMLResponse:
    """How many jobs would be cancelled, with a form to confirm."""
    filters = Filters.of(request.query_params)
    if not filters.cancels:
        return show(request, caller, "cancel", filters=filters, count=None)
    count = await _counted(service_of(request).read_for(caller), _which(caller, filters))
    until = None if count.until is None else cursors.encode("unended", (count.until,))
    return show(request, caller, "cancel", filters=filters, count=count, until=until)


@router.post("/jobs/cancel")
async def cancel(request: Request, caller: Operator) -> RedirectResponse:
    """Exactly what the preview counted: jobs that were enqueued since are not cancelled. Needs a reason."""
    form = await form_of(request)
    filters = Filters.of({name: form.one(name) or "" for name in Filters.__slots__})
    if not filters.cancels:
        raise Problem(
            422,
            "InvalidRequest",
            "Jobs are cancelled together by queue, task, group or state (queued, running); nothing was done.",
            next_step="Filter the list of jobs by these alone.",
        )
    which, reason, until = _which(caller, filters), form.why("reason"), form.one("until")
    if until is not None:
        which = which.behind(cursors.decode(until, "unended", cancellable.CURSOR_TYPES)[0])
    work = operate.CancelJobs(which, reason=reason, by=caller.signed(HERE), jobs_max=_JOBS_MAX)
    while (batch := work.batch()) is not None:
        work.took(await service_of(request).operate.run(batch))
    said = "bulk_cancelled" if work.behind is None else "bulk_cancelled_some"
    return go("/jobs", said=said, n=work.jobs, **filters.query)


def _which(caller: Caller, filters: Filters) -> cancellable.UnendedFilter:
    return cancellable.UnendedFilter(
        queue=filters.queue or None,
        task=filters.task or None,
        group=filters.group or None,
        state=JobState(filters.state) if filters.state else None,
        only_queues=caller.only_queues,
    )


async def _counted(read: Share, which: cancellable.UnendedFilter) -> cancellable.Count:
    """Over several windows: the jobs of one task may lie behind thousands of others."""
    total = await read.run(cancellable.count(which))
    for _ in range(_WINDOWS_MAX - 1):
        if total.behind is None:
            break
        more = await read.run(cancellable.count(which.behind(total.behind)))
        total = replace(
            more, queued=total.queued + more.queued, running=total.running + more.running, until=total.until or more.until
        )
    return total
