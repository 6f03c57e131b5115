"""Failed jobs, in groups by their errors, and retrying them: first a count, then all of them at once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Depends, Request

from faultline import operate
from faultline.store.reads import failures, views
from faultline.web.api import cursors
from faultline.web.auth.access import needs
from faultline.web.auth.caller import Caller
from faultline.web.pages.page_frame import HERE, go, show
from faultline.web.server.forms import form_of
from faultline.web.server.service import service_of

if TYPE_CHECKING:
    from fastapi.responses import HTMLResponse, RedirectResponse

router = APIRouter()
#: More are retried by further requests.
_JOBS_MAX = 50_000


@router.get("/failures")
async def failures_page(request: Request, caller: Annotated[Caller, Depends(needs("read"))]) -> HTMLResponse:
    read = service_of(request).read_for(caller)
    which = _which(caller, queue=request.query_params.get("queue"))
    found, now = await asyncio.gather(read.run(failures.groups(which)), read.run(views.clock()))
    return show(request, caller, "failures", found=found, which=which, window=failures.WINDOW, now=now)


@router.get("/failures/retry")
async def preview(request: Request, caller: Annotated[Caller, Depends(needs("operate"))]) -> HTMLResponse:
    """How many jobs would be retried, with a form to confirm."""
    query = request.query_params
    which = _which(caller, queue=query.get("queue"), task=query.get("task"), kind=query.get("error"))
    count = await service_of(request).read_for(caller).run(failures.count(which))
    until = None if count.until is None else cursors.encode("failed", count.until)
    return show(request, caller, "retry", which=which, count=count, until=until)


@router.post("/failures/retry")
async def retry(request: Request, caller: Annotated[Caller, Depends(needs("operate"))]) -> RedirectResponse:
    """Exactly what the preview counted: jobs that failed since are not retried."""
    form = await form_of(request)
    kind, until = next(iter(form.all("error")), None), form.one("until")
    which = _which(caller, queue=form.one("queue"), task=form.one("task"), kind=kind)
    if until is not None:
        which = which.behind(cursors.decode(until, "failed", failures.CURSOR_TYPES))
    work = operate.RetryFailed(which, reason=form.words("reason"), by=caller.signed(HERE), jobs_max=_JOBS_MAX)
    while (batch := work.batch()) is not None:
        work.took(await service_of(request).operate.run(batch))
    return go("/failures", said="failed_retried", n=work.jobs)


def _which(
    caller: Caller, *, queue: str | None = None, task: str | None = None, kind: str | None = None
) -> failures.FailedFilter:
    """The empty kind is that of jobs without a recorded error."""

    def clean(text: str | None) -> str | None:
        return text.replace("\x00", "") or None if text else None

    kind = None if kind is None else kind.replace("\x00", "")
    return failures.FailedFilter(clean(queue), clean(task), error_kind=kind, only_queues=caller.only_queues)
