"""The queues, and pausing them. Workers claim nothing from a paused queue; running jobs finish."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Depends, Request

from faultline import operate
from faultline.core.bounds import QUEUE_LENGTH_MAX
from faultline.explain import limits as words
from faultline.explain.sparkline import curve
from faultline.explain.why_not_running import serving
from faultline.store.reads import groups, limits, overview, views
from faultline.web.auth.access import needs
from faultline.web.auth.caller import Caller
from faultline.web.pages.page_frame import HERE, go, show
from faultline.web.pages.queue import address
from faultline.web.server.forms import form_of
from faultline.web.server.problems import Problem
from faultline.web.server.service import service_of

if TYPE_CHECKING:
    from fastapi.responses import HTMLResponse, RedirectResponse

router = APIRouter()
_TRENDS_MAX = 30
_MINUTES = 30
_DONE_MAX = 50


@router.get("/queues")
async def queues_page(request: Request, caller: Annotated[Caller, Depends(needs("read"))]) -> HTMLResponse:
    read = service_of(request).read_for(caller)
    lines, uses, budgets, workers, done, now = await asyncio.gather(
        read.run(overview.queues()),
        read.run(groups.in_use(jobs_max=1_000)),
        read.run(limits.budgets()),
        read.run(overview.workers()),
        read.run(views.operations(only_queues=caller.only_queues, keys=caller.sees_keys, entries_max=_DONE_MAX)),
        read.run(views.clock()),
    )
    lines = [line for line in lines if caller.may_touch(line.name)]
    drawn = [line.name for line in lines[:_TRENDS_MAX]]
    trends = await asyncio.gather(*(read.run(overview.trend(_MINUTES, name)) for name in drawn))
    curves = {
        name: curve(
            [minute.succeeded for minute in trend[:-1]], description=f"Jobs completed per minute, over {_MINUTES} minutes."
        )
        for name, trend in zip(drawn, trends, strict=True)
    }
    return show(
        request,
        caller,
        "queues",
        lines=lines,
        uses={use.queue: use for use in uses},
        idle=sorted({use.queue for use in uses if caller.may_touch(use.queue)} - {line.name for line in lines}),
        unserved={line.name for line in lines if line.due and not serving(line.name, workers)},
        # Jobs of all queues take from them.
        budgets=budgets if caller.queues is None else [],
        curves=curves,
        done=done,
        now=now,
        address=address,
        whose=words.whose,
        in_force=words.in_force,
    )


@router.post("/queues/pause")
async def pause(request: Request, caller: Annotated[Caller, Depends(needs("operate"))]) -> RedirectResponse:
    form = await form_of(request)
    name, reason = _queue(form.one("queue"), caller), form.words("reason")
    await service_of(request).operate.run(operate.pause(name, reason=reason, by=caller.signed(HERE)))
    return go("/queues", said="paused")


@router.post("/queues/resume")
async def resume(request: Request, caller: Annotated[Caller, Depends(needs("operate"))]) -> RedirectResponse:
    form = await form_of(request)
    name, reason = _queue(form.one("queue"), caller), form.words("reason")
    resumed = await service_of(request).operate.run(operate.resume(name, reason=reason, by=caller.signed(HERE)))
    return go("/queues", said="resumed" if resumed else "was_not_paused")


def _queue(name: str | None, caller: Caller) -> str:
    if name is None or len(name) > QUEUE_LENGTH_MAX or not caller.may_touch(name):
        raise Problem(404, "QueueNotFound", "No such queue.", next_step="See the list of queues.")
    return name
